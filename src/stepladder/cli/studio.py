"""`studio` opens the web page that shows runs."""

from pathlib import Path
from typing import Annotated

from stepladder.cli.declarations import argument, takes_groups
from stepladder.cli.serve import LIMITS, PORT, ListenOptions
from stepladder.core.io.auth_token import read_token
from stepladder.core.io.files import expand_path
from stepladder.serve.server_configs import StudioConfig


@takes_groups
def studio_command(
    *,
    runs: Annotated[Path, argument("RUNS", "A folder of runs, or one run.", "runs", parser=expand_path)] = Path("runs"),
    port: Annotated[int, PORT] = 8002,
    listen: ListenOptions,
    limits: Annotated[StudioConfig, LIMITS],
) -> None:
    """Open a local web page: runs while they train, their search trees, scores and curves."""
    from stepladder.serve.studio.run_library import RunLibrary
    from stepladder.serve.studio.studio_server import serve_studio  # imports the HTTP libraries

    library = RunLibrary(runs)
    settings = StudioConfig.read({**limits.model_dump(), "token": read_token(listen.token_file)})
    count = len(library.names())
    what = f"{runs}, {count:,} run{'' if count == 1 else 's'}"
    serve_studio(library, settings, **listen.arguments(port, what))
