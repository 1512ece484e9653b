// Server-sent events in reply to a POST, which EventSource cannot read.

/** The reason in an error response, or what its status says. */
export async function problemOf(response) {
  try {
    const data = await response.json();
    const detail = data.detail ?? data.error?.message;
    if (typeof detail === "string" && detail) return detail;
  } catch {
    // not JSON
  }
  return response.status === 401
    ? "The server asks for its token: open the address with ?token=TOKEN again."
    : `The server answered with status ${response.status}.`;
}

/** Yields [name, data] of every event. Throws an Error with a message for the page. */
export async function* postedEvents(url, body, signal) {
  let response;
  try {
    response = await fetch(url, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Error("The server cannot be reached. Is it still running?");
  }
  if (!response.ok) throw new Error(await problemOf(response));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (signal.aborted) throw error;
      throw new Error("The connection to the server was lost in the middle of the answer.");
    }
    if (part.done) return;
    text += part.value;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const lines = text.slice(0, end).split("\n");
      text = text.slice(end + 2);
      const field = (name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
      const data = field("data");
      if (data !== undefined) yield [field("event") ?? "message", JSON.parse(data)];
    }
  }
}
