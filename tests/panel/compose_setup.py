"""The services of docker/compose.yml as processes in a namespace of their own; used by inside_compose.py."""

import contextlib
import os
import re
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import psutil

from panel.embedded import Postgres, postgres_folders, valkey_binary
from tests.panel.compose import FOLDER, ROOT, Compose, example
from tests.waiting import until

NAME = "berth.test"
ADDRESSES = {"database": "172.30.81.2", "broker": "172.30.81.3", "web": "172.30.80.3", NAME: "172.30.80.2"}
WORK = Path(os.environ.get("BERTH_TEST_FOLDER", "."))
PROXY = os.environ.get("BERTH_TEST_PROXY", "caddy")
PASSWORD = "correct horse battery"


def run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)


class Setup:
    """The running services, and shortcuts to speak with them as a person does."""

    def __init__(self) -> None:
        self.compose = Compose({**example(), "BERTH_NAME": NAME, "BERTH_TLS": "files"})
        self.procs: dict[str, subprocess.Popen[bytes]] = {}
        self.data, self.certificates = WORK / "data", WORK / "certificates"
        for folder in (self.data, self.certificates, WORK / "tmp", WORK / "models", WORK / "home"):
            folder.mkdir()
        self.binaries = postgres_folders()[max(postgres_folders())]
        self.pem = self.certificates / "fullchain.pem"

    # --- the place ---

    def network(self) -> None:
        run("ip", "link", "set", "lo", "up")
        for address in ADDRESSES.values():
            run("ip", "address", "add", f"{address}/32", "dev", "lo")
        hosts = WORK / "hosts"
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in ADDRESSES.items())]
        hosts.write_text("\n".join(lines) + "\n")
        run("mount", "--bind", str(hosts), "/etc/hosts")
        run("mount", "--bind", str(ROOT), str(ROOT))
        run("mount", "-o", "remount,bind,ro", str(ROOT))

    def certificate(self) -> None:
        """As docs/install.md has it made."""
        argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        argv += ["-days", "3650", "-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"]
        run(*argv, "-keyout", str(self.certificates / "privkey.pem"), "-out", str(self.pem))

    # --- the services ---

    def environment(self, name: str) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:{self.binaries}:{os.environ['PATH']}:/usr/sbin"
        kept = {"PATH": path, "HOME": str(WORK / "home"), "TMPDIR": str(WORK / "tmp"), "LANG": "C.UTF-8"}
        given = self.compose.service(name).environment
        return {**kept, **{key: str(self.data) if value == "/data" else value for key, value in given.items()}}

    def spawn(self, name: str, argv: list[str], env: dict[str, str] | None = None) -> None:
        log = (WORK / f"{name}.log").open("ab")
        env = self.environment(name) if env is None else env
        self.procs[name] = subprocess.Popen(
            argv, cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True, stdin=subprocess.DEVNULL
        )

    def once(self, name: str, argv: list[str], timeout: float = 180) -> str:
        env = {**self.environment(name), "DJANGO_SETTINGS_MODULE": "panel.settings"}
        done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout, check=False)
        assert done.returncode == 0, f"{argv}\n{done.stdout}{done.stderr}\n{self.logs()}"
        return done.stdout

    def healthy(self, name: str) -> bool:
        """Its own health check, run as docker would."""
        argv = self.compose.service(name).health
        if name == "broker":  # the wheel has no valkey-cli
            import redis

            with contextlib.suppress(redis.RedisError):
                return bool(redis.Redis(host="broker", socket_timeout=2).ping())
            return False
        if name == "proxy" and PROXY == "nginx":
            argv = ["sh", "-c", f"exec 3<>/dev/tcp/{ADDRESSES[NAME]}/443"]
            argv[0] = "bash"
        return subprocess.run(argv, cwd=ROOT, env=self.environment(name), capture_output=True).returncode == 0

    def database(self) -> None:
        """The image's start makes this role and this database."""
        given = self.compose.service("database").environment
        folder, word = WORK / "postgres", WORK / "password"
        word.write_text(given["POSTGRES_PASSWORD"])
        user = Postgres(WORK, WORK).as_user()
        argv = [*user, str(self.binaries / "initdb"), "-D", str(folder), "-U", given["POSTGRES_USER"], "--no-sync"]
        run(*argv, "--auth-host=scram-sha-256", "--auth-local=trust", f"--pwfile={word}", "--locale=C", "-E", "UTF8")
        with (folder / "pg_hba.conf").open("a") as rules:
            rules.write("host all all all scram-sha-256\n")  # as the image's start does
        server = [str(self.binaries / "postgres"), "-D", str(folder), "-c", "listen_addresses=*", "-c", "fsync=off"]
        self.spawn("database", [*user, *server, "-c", f"unix_socket_directories={WORK}"])
        until(lambda: self.healthy("database"), timeout=30, why="the database answers")
        psql = [str(self.binaries / "psql"), "-h", str(WORK), "-U", given["POSTGRES_USER"], "postgres", "-c"]
        run(*psql, f"CREATE DATABASE {given['POSTGRES_DB']}")

    def broker(self) -> None:
        command = self.compose.service("broker").command
        image = ["--bind", "*", "--protected-mode", "no", "--dir", str(WORK)]  # the image's own
        self.spawn("broker", [str(valkey_binary()), *command[1:], *image])
        until(lambda: self.healthy("broker"), timeout=20, why="the broker answers")

    def proxy(self) -> None:
        if PROXY == "nginx":
            return self.nginx()
        config = WORK / "Caddyfile"
        text = (FOLDER / "Caddyfile").read_text(encoding="utf-8")
        config.write_text(text.replace("/certificates/", f"{self.certificates}/"), encoding="utf-8")
        command = [
            str(config) if part == "/etc/caddy/Caddyfile" else part for part in self.compose.service("proxy").command
        ]
        own = {"XDG_DATA_HOME": str(WORK / "caddy"), "XDG_CONFIG_HOME": str(WORK / "caddy")}
        self.spawn("proxy", command, {**self.environment("proxy"), **own})
        return None

    def nginx(self) -> None:
        """The lines for nginx in docs/install.md, in front of the same services."""
        page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
        server = re.search(r"```nginx\n(.*?)```", page, flags=re.DOTALL)
        assert server
        text = server[1].replace("127.0.0.1:8080", "web:8080").replace("berth.example.org", NAME)
        text = re.sub(r"(ssl_certificate(?:_key)?) \S*/(\w+\.pem);", rf"\1 {self.certificates}/\2;", text)
        config = WORK / "nginx.conf"
        config.write_text(
            f"daemon off; user root; pid {WORK}/nginx.pid; error_log stderr; events {{}}\n"
            f"http {{ access_log off; client_body_temp_path {WORK}/tmp; proxy_temp_path {WORK}/tmp;\n{text}\n}}\n"
        )
        self.spawn("proxy", ["nginx", "-c", str(config), "-e", "stderr"])

    def stop(self) -> None:
        for proc in self.procs.values():
            if proc.poll() is None:
                os.killpg(proc.pid, signal.SIGKILL)
                proc.wait(10)
        for proc in psutil.process_iter(["cmdline"]):  # engines and the host's door outlive the agent by design
            with contextlib.suppress(psutil.Error, OSError):
                ours = proc.environ().get("HOME") == str(WORK / "home") or str(WORK) in " ".join(
                    proc.info["cmdline"] or ()
                )
                if ours and proc.pid not in (os.getpid(), os.getppid()):
                    proc.kill()

    def logs(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-2500:]}" for log in WORK.glob("*.log"))

    # --- people ---

    def client(self) -> httpx.Client:
        trusted = ssl.create_default_context(cafile=str(self.pem))
        return httpx.Client(base_url=f"https://{NAME}", verify=trusted, timeout=20, trust_env=False)

    def shell(self, *lines: str) -> str:
        """Acts that have pages of their own, which other tests look at."""
        return self.once("web", [sys.executable, "manage.py", "shell", "--no-imports", "-c", "\n".join(lines)]).strip()
