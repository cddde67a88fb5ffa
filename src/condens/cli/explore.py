"""`condens explore` and `condens serve`: a model behind a local page, or an API."""

from pathlib import Path
from typing import Annotated

import typer

from condens.cli.models import load_model
from condens.cli.options import Dates, Decimal, Delimiter, Encoding, ModelFile
from condens.cli.tables import Input, numeric_names, target_names
from condens.errors import ArgumentError

Host = Annotated[str, typer.Option(help="The address to listen on; only this machine by default.")]
Port = Annotated[int, typer.Option(help="0 for any that is free.")]
AllowRemote = Annotated[
    bool, typer.Option("--allow-remote", help="Listen on an address that others can reach.")
]
AllowHost = Annotated[
    list[str] | None, typer.Option(help="A name that clients may call this server by.")
]
Certificate = Annotated[Path | None, typer.Option("--tls-certificate", help="A PEM file.")]
Key = Annotated[Path | None, typer.Option("--tls-key", help="A PEM file.")]
BehindProxy = Annotated[
    bool, typer.Option("--behind-proxy", help="A proxy in front does the encryption.")
]


def explore(
    model: ModelFile,
    data: Annotated[
        str | None, typer.Option(help="A table whose rows are shown near the condition.")
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    allow_remote: AllowRemote = False,
    allow_host: AllowHost = None,
    certificate: Certificate = None,
    key: Key = None,
    behind_proxy: BehindProxy = False,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    dates: Dates = "refuse",
) -> None:
    """Open a page with the joint density of the targets: move a condition, click a value.

    Example: condens explore model.condens --data houses.csv
    """
    from condens.explorer.server import run

    table = None
    if data is not None:
        fitted = load_model(model)
        numeric = [*numeric_names(fitted), *target_names(fitted)]
        table = Input(data, delimiter, decimal, encoding, dates).read(numeric)
    run(
        model,
        data=table,
        host=host,
        port=port,
        allow_remote=allow_remote,
        allow_hosts=tuple(allow_host or ()),
        tls=_tls(certificate, key),
        behind_proxy=behind_proxy,
        open_browser=browser,
    )


def serve(
    model: ModelFile,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    allow_remote: AllowRemote = False,
    allow_host: AllowHost = None,
    certificate: Certificate = None,
    key: Key = None,
    behind_proxy: BehindProxy = False,
) -> None:
    """Serve a model to programs: /api/density, /api/sample, /api/query and /openapi.json.

    Example: condens serve model.condens --port 8000
    """
    from condens.explorer.server import run

    run(
        model,
        host=host,
        port=port,
        page=False,
        allow_remote=allow_remote,
        allow_hosts=tuple(allow_host or ()),
        tls=_tls(certificate, key),
        behind_proxy=behind_proxy,
    )


def _tls(certificate: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ArgumentError(
            "--tls-certificate and --tls-key",
            got="are not both given",
            expected="encryption needs both",
            fix="Pass both files.",
        )
    return certificate, key
