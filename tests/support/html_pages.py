"""HTML pages, parsed as a browser would parse them."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """The tags of a page, what they load, and the text that is shown. Every tag must be closed, and none may act."""

    VOID = ("meta", "img")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.sections: list[str] = []
        self.labels: list[str] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: str(value) for name, value in attrs}
        self.tags.append(tag)
        self.links += [found[name] for name in ("src", "href", "data", "srcset", "action") if name in found]
        self.ids += [found["id"]] if "id" in found else []
        self.sections += [found["id"]] if tag == "section" else []
        self.labels += [found["aria-label"]] if tag == "svg" else []
        assert not any(name.startswith("on") for name in found), f"{tag} acts: {found}"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        """All that is shown, in one line."""
        return " ".join(" ".join(self.texts).split())
