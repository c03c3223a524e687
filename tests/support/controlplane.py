"""A real control plane on loopback for tests: etcd, kube-apiserver and kube-controller-manager from `KUBEBUILDER_ASSETS`.

`python -m support.controlplane FOLDER` (with `tests` on PYTHONPATH) starts one by hand, prints its kubeconfigs and runs until Ctrl-C.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
BINARIES = ("etcd", "kube-apiserver", "kube-controller-manager")
USERS = {"admin": "system:masters", "kubelet": "system:masters", "sandlog": "sandlog", "stock": "system:masters"}
"""token user → group; `sandlog` has just the rights of deploy/rbac.yaml"""
CONTROLLERS = "garbage-collector-controller,job-controller,namespace-controller,ttl-after-finished-controller"
START_LIMIT = 60.0


def assets() -> Path | None:
    """The folder with the binaries, if all of them are there."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if folder and all(os.access(Path(folder) / name, os.X_OK) for name in BINARIES):
        return Path(folder)
    return None


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for bound in sockets:
            bound.bind(("127.0.0.1", 0))
        return [int(bound.getsockname()[1]) for bound in sockets]
    finally:
        for bound in sockets:
            bound.close()


class ControlPlane:
    def __init__(self, folder: Path) -> None:
        found = assets()
        if found is None:
            raise RuntimeError(f"KUBEBUILDER_ASSETS must name a folder with {', '.join(BINARIES)}")
        self.folder, self._assets = folder, found
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._etcd_port, self._peer_port, self._port = free_ports(3)
        self.url = f"https://127.0.0.1:{self._port}"
        self._context = ssl.create_default_context()
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE

    # -- life

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_credentials()
        self.start_etcd()
        self.start_api_server()
        for user in USERS:
            self._write_kubeconfig(user)
        self.start_controller_manager()
        self._install()

    def stop(self) -> None:
        for name in reversed(BINARIES):
            self.stop_one(name)

    def stop_one(self, name: str, signal_number: int = signal.SIGTERM) -> None:
        process = self._processes.pop(name, None)
        if process is None:
            return
        process.send_signal(signal_number)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        self._spawn(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )
        self._until("etcd", lambda: self._http(f"{client}/health"))

    def start_api_server(self) -> None:
        self._spawn(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--cert-dir={self.folder / 'certs'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.folder / 'sa.pub'}",
            f"--service-account-signing-key-file={self.folder / 'sa.key'}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--allow-privileged=true",
            "--authorization-mode=RBAC",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--disable-admission-plugins=ServiceAccount",
            f"--audit-policy-file={self.folder / 'audit.yaml'}",
            f"--audit-log-path={self.folder / 'audit.log'}",
            "--audit-log-mode=batch",
        )
        self._until("kube-apiserver", lambda: self._http(f"{self.url}/readyz", "admin"))

    def start_controller_manager(self) -> None:
        self._spawn(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig('admin')}",
            "--leader-elect=false",
            f"--controllers={CONTROLLERS}",
            "--use-service-account-credentials=false",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            "--secure-port=0",
        )

    # -- use

    def kubeconfig(self, user: str) -> Path:
        return self.folder / f"{user}.kubeconfig"

    def token(self, user: str) -> str:
        return f"{user}-token"

    def call(self, method: str, path: str, body: Any = None, *, user: str = "admin") -> Any:
        """One call, JSON in and out. Raises urllib.error.HTTPError."""
        data = json.dumps(body).encode() if body is not None else None
        return json.loads(self._http(self.url + path, user, data, method) or b"{}")

    # -- parts

    def _spawn(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen([str(self._assets / name), *arguments], stdout=log, stderr=log)

    def _http(self, url: str, user: str | None = None, body: bytes | None = None, method: str | None = None) -> bytes:
        request = urllib.request.Request(url, data=body, method=method, headers={"Content-Type": "application/json"})
        if user is not None:
            request.add_header("Authorization", f"Bearer {self.token(user)}")
        with urllib.request.urlopen(request, context=self._context, timeout=10) as answer:
            return bytes(answer.read())

    def _until(self, what: str, attempt: Callable[[], object]) -> None:
        end = time.monotonic() + START_LIMIT
        while True:
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended with {process.returncode}, see {self.folder / name}.log")
            try:
                attempt()
            except (OSError, urllib.error.URLError) as problem:
                if time.monotonic() > end:
                    raise RuntimeError(f"{what} did not come up: {problem}") from problem
                time.sleep(0.1)
            else:
                return

    def _write_credentials(self) -> None:
        key, public = self.folder / "sa.key", self.folder / "sa.pub"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        subprocess.run(["openssl", "rsa", "-in", key, "-pubout", "-out", public], check=True, capture_output=True)
        lines = [f"{self.token(user)},{user},{user},{group}" for user, group in USERS.items()]
        (self.folder / "tokens.csv").write_text("\n".join(lines) + "\n")
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata"}],
        }
        (self.folder / "audit.yaml").write_text(yaml.safe_dump(policy))

    def _write_kubeconfig(self, user: str) -> None:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url, "insecure-skip-tls-verify": True}}],
            "users": [{"name": user, "user": {"token": self.token(user)}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
        }
        self.kubeconfig(user).write_text(yaml.safe_dump(config))

    def _install(self) -> None:
        for file in sorted((ROOT / "deploy" / "crds").glob("*.yaml")):
            for document in yaml.safe_load_all(file.read_text()):
                if document:
                    self.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", document)
        self._install_rights()
        for plural in ("batchsandboxes", "pools", "sandboxsnapshots"):
            path = f"/apis/sandbox.opensandbox.io/v1alpha1/{plural}"
            self._until(plural, lambda path=path: self.call("GET", path))
        self._until("kube-system", lambda: self.call("GET", "/api/v1/namespaces/kube-system"))

    def _install_rights(self) -> None:
        """The rights of deploy/rbac.yaml, bound to the user `sandlog` in place of its service account."""
        rights = "/apis/rbac.authorization.k8s.io/v1"
        for document in yaml.safe_load_all((ROOT / "deploy" / "rbac.yaml").read_text()):
            if not document:
                continue
            kind, meta = document["kind"], document["metadata"]
            namespaced = f"/namespaces/{meta['namespace']}" if "namespace" in meta else ""
            if namespaced:
                self._ensure_namespace(meta["namespace"])
            if kind.endswith("Binding"):
                document["subjects"] = [{"kind": "Group", "name": "sandlog", "apiGroup": "rbac.authorization.k8s.io"}]
            plural = f"{kind.lower()}s"
            if kind in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"):
                self.call("POST", f"{rights}{namespaced}/{plural}", document)

    def _ensure_namespace(self, name: str) -> None:
        try:
            self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        except urllib.error.HTTPError as problem:
            if problem.code != 409:
                raise


def main() -> None:
    plane = ControlPlane(Path(sys.argv[1]).resolve())
    plane.start()
    try:
        print(f"{plane.url}\n" + "\n".join(str(plane.kubeconfig(user)) for user in USERS), flush=True)
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        plane.stop()


if __name__ == "__main__":
    main()
