"""Where an API server is and who we are to it, as kubeconfig or the pod's service account say; kubernetes_asyncio reads both.

Its generated client is not used. Credentials that age are read again: a service account's token every minute by kubernetes_asyncio,
everything else through `refresh`, when due or when the server answers 401.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec
import structlog
import yaml
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import ConfigException, load_incluster_config, load_kube_config

logger = structlog.get_logger(__name__)

REFRESH: Final = 60.0
"""Seconds after which credentials that may age are read again (token files, OIDC and GCP providers)."""
REFRESH_AT_MOST_EVERY: Final = 5.0
KUBECONFIG: Final = "~/.kube/config"
EARLY: Final = timedelta(minutes=1)
"""How long before its end an exec plugin's credential is asked for anew."""


class CannotConfigure(Exception):
    """No usable configuration; the text says what was tried and why it does not serve. How to name another is the command line's to say."""


class Source(msgspec.Struct, frozen=True):
    """Which configuration: kubeconfig (None: `KUBECONFIG`, then ~/.kube/config) and context (None: the current one), or the pod's own.

    `in_cluster` None: the pod's own if no kubeconfig is named and we run in a pod.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    in_cluster: bool | None = None

    @property
    def is_in_cluster(self) -> bool:
        if self.in_cluster is not None:
            return self.in_cluster
        named = self.kubeconfig or self.context or os.environ.get("KUBECONFIG")
        return not named and bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


class Credentials:
    """`await Credentials.load(source)`. `generation` rises when what TLS is made from may have changed."""

    def __init__(self, source: Source) -> None:
        self.generation = 0
        self._source = source
        self._configuration: Any = None
        self._loader: Any = None
        self._lock = asyncio.Lock()
        self._loaded_at = float("-inf")
        self._connection: tuple[object, ...] = ()

    @classmethod
    async def load(cls, source: Source) -> Credentials:
        """Raises CannotConfigure."""
        self = cls(source)
        await self._load()
        return self

    @property
    def host(self) -> str:
        """The server's address, without a trailing slash."""
        return str(self._configuration.host).rstrip("/")

    @property
    def server_hostname(self) -> str | None:
        """The name to check the server's certificate for, where it is not the address's."""
        return self._configuration.tls_server_name or None

    @property
    def proxy(self) -> str | None:
        """The proxy that kubeconfig names, else the environment's."""
        if self._configuration.proxy:
            return str(self._configuration.proxy)
        address = urlsplit(self.host)
        if address.hostname is None or proxy_bypass(address.netloc):
            return None
        return getproxies().get(address.scheme)

    def tls(self) -> ssl.SSLContext | bool:
        """What aiohttp takes as `ssl`. Raises CannotConfigure."""
        if not self.host.startswith("https"):
            return True
        configuration = self._configuration
        try:
            context = ssl.create_default_context(cafile=configuration.ssl_ca_cert or None)
            if configuration.cert_file:
                context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
        except OSError as error:  # ssl.SSLError is one too
            raise CannotConfigure(f"the certificates of {self._described()} cannot be used: {error}") from error
        if not configuration.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    async def authorization(self) -> str | None:
        """The value of the header `Authorization`, None where a certificate or nothing stands for us."""
        if asyncio.get_running_loop().time() >= self._loaded_at + REFRESH and self._ages():
            await self.refresh()
        if hook := self._configuration.refresh_api_key_hook:
            hook(self._configuration)
        token = self._configuration.api_key.get("BearerToken")
        return str(token).strip() if token else None

    async def refresh(self) -> None:
        """Read the configuration again, unless that was just done. A failure leaves what there is."""
        async with self._lock:
            if asyncio.get_running_loop().time() < self._loaded_at + REFRESH_AT_MOST_EVERY:
                return
            try:
                await self._load()
            except CannotConfigure as error:
                self._loaded_at = asyncio.get_running_loop().time()
                logger.warning("credentials could not be read again", error=str(error))

    async def _load(self) -> None:
        configuration = Configuration()
        try:
            if self._source.is_in_cluster:
                load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            else:
                path = self._source.kubeconfig
                _check_file(path or os.environ.get("KUBECONFIG") or KUBECONFIG)
                self._loader = await load_kube_config(
                    config_file=str(path) if path else None,
                    context=self._source.context,
                    client_configuration=configuration,
                )
        except (ConfigException, OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
            raise CannotConfigure(f"{self._described()}: {error}") from error
        self._configuration = configuration
        self._loaded_at = asyncio.get_running_loop().time()
        connection = _connection(configuration)
        if connection != self._connection:
            self._connection = connection
            self.generation += 1

    def _ages(self) -> bool:
        """Whether what was loaded may have aged by now."""
        if self._loader is None:
            return False
        user = getattr(self._loader, "_user", None) or {}
        if "tokenFile" in user or "auth-provider" in user:
            return True
        end = getattr(self._loader, "exec_plugin_expiry", None)
        if not isinstance(end, datetime):
            return False
        return (end if end.tzinfo else end.replace(tzinfo=UTC)) - EARLY <= datetime.now(UTC)

    def _described(self) -> str:
        if self._source.is_in_cluster:
            return "the pod's service account"
        context = f" (context {self._source.context})" if self._source.context else ""
        return f"kubeconfig {self._source.kubeconfig or os.environ.get('KUBECONFIG') or KUBECONFIG}{context}"


def _check_file(given: Path | str) -> None:
    """What kubernetes_asyncio says badly or not at all. Of a list of files, those that are missing are passed over, as kubectl does.

    Raises OSError or ConfigException.
    """
    files = [Path(part).expanduser() for part in str(given).split(os.pathsep) if part]
    present = [file for file in files if len(files) == 1 or file.exists()]
    if not present:
        raise ConfigException("no such file")
    for file in present:
        try:
            text = file.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigException((error.strerror or str(error)).lower()) from error
        except UnicodeDecodeError as error:
            raise ConfigException(f"{file.name} is no kubeconfig: not text") from error
        try:
            found = yaml.safe_load(text)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f" (line {mark.line + 1})" if mark is not None else ""
            raise ConfigException(f"{file.name} is no kubeconfig: not YAML{where}") from error
        if not isinstance(found, dict):
            raise ConfigException(f"{file.name} is no kubeconfig: not a YAML mapping with clusters, users and contexts")


def _connection(configuration: Any) -> tuple[object, ...]:
    """What connections are made from; another value means that they must be made anew."""
    files = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    names = (configuration.host, configuration.verify_ssl, configuration.tls_server_name, configuration.proxy)
    return *names, *files, *(_version(file) for file in files if file)


def _version(file: str) -> tuple[int, int]:
    try:
        stat = os.stat(file)
    except OSError:
        return 0, 0
    return stat.st_mtime_ns, stat.st_size
