"""Files that start a server or a client: a script, a systemd unit, a Dockerfile and a compose file."""

from __future__ import annotations

from pathlib import Path

from unisono import __version__

START = """\
#!/bin/sh
# Starts the {what} of this directory and starts it again whenever it ends, until 'unisono deploy stop' or Ctrl-C.
cd "$(dirname "$0")" && exec unisono deploy {what} . "$@"
"""
UNIT = """\
# Copy to /etc/systemd/system, put this directory at WorkingDirectory (or change both paths), make the user, then:
# systemctl enable --now unisono-{what}
[Unit]
Description=unisono federation, {what}
After=network-online.target
Wants=network-online.target

[Service]
User=unisono
WorkingDirectory=/srv/unisono/{what}
ExecStart=/usr/bin/env unisono deploy {what} .
ExecReload=/bin/kill -HUP $MAINPID
Restart=always
RestartSec=5
KillMode=control-group
TimeoutStopSec=60
UMask=0077
NoNewPrivileges=true
PrivateTmp=true
PrivateDevices={private_devices}
ProtectSystem=strict
ProtectHome=read-only
ProtectKernelTunables=true
ProtectKernelModules=true
ProtectControlGroups=true
RestrictSUIDSGID=true
ReadWritePaths=/srv/unisono/{what}
LimitNOFILE=8192
MemoryMax=80%

[Install]
WantedBy=multi-user.target
"""
DOCKERFILE = """\
FROM python:3.11-slim
RUN useradd --uid 10001 --create-home unisono \\
    && pip install --no-cache-dir 'unisono[flower]=={version}'
USER 10001
WORKDIR /srv/unisono
ENTRYPOINT ["unisono", "deploy"]
CMD ["{what}", "."]
"""
COMPOSE = """\
# The directory must belong to user 10001, and this file must not leave the machine's owner: chown -R 10001 .
services:
  {what}:
    build: .
    restart: unless-stopped
    read_only: true
    tmpfs:
      - /tmp
    cap_drop:
      - ALL
    security_opt:
      - no-new-privileges:true
    volumes:
      - .:/srv/unisono
{more}"""
SERVER_PORTS = """\
    ports:
      - "{port}:{port}"
"""
CLIENT_DATA = """\
      - ./samples:/samples:ro
"""


def write_start_files(path: Path, what: str, port: int = 0) -> None:
    """Write what starts a server or a client.

    Args:
        path: its directory.
        what: ``server`` or ``client``.
        port: the server's.
    """
    script = path / "start.sh"
    script.write_text(START.format(what=what))
    script.chmod(0o755)
    # A client may train on a GPU, which is a device.
    unit = UNIT.format(what=what, private_devices="true" if what == "server" else "false")
    (path / f"unisono-{what}.service").write_text(unit)
    (path / "Dockerfile").write_text(DOCKERFILE.format(what=what, version=__version__))
    (path / ".dockerignore").write_text("*\n")
    more = SERVER_PORTS.format(port=port) if what == "server" else CLIENT_DATA
    (path / "compose.yaml").write_text(COMPOSE.format(what=what, more=more))
