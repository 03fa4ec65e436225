"""HTTPS: the server's certificate, and which certificates it asks of clients."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

from twostroke.core.errors import ConfigError
from twostroke.core.files import reason

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """What a context is made of; see the fields of ``ServerOptions`` of the same names.

    Attributes:
        key: The certificate's own file where that holds the key, too.
    """

    certificate: str
    key: str
    password: str | None
    ca_certs: str | None
    cert_reqs: ssl.VerifyMode
    ciphers: str | None

    def context(self) -> ssl.SSLContext:
        """TLS 1.2 and 1.3. Raises ConfigError for a file that cannot be used, by its flag."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load_certificate(context)
        if self.ca_certs is not None:
            _check_readable("--ssl-ca-certs", self.ca_certs)
            try:
                context.load_verify_locations(self.ca_certs)
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"--ssl-ca-certs {self.ca_certs}: {_explain(error)}",
                    hint="give certificates in PEM format",
                ) from error
        context.verify_mode = self.cert_reqs
        if self.ciphers is not None:
            try:
                context.set_ciphers(self.ciphers)
            except ssl.SSLError as error:
                raise ConfigError(
                    f"--ssl-ciphers {self.ciphers!r}: no such cipher",
                    hint="`openssl ciphers -v` lists them; those of TLS 1.3 are always on",
                ) from error
        return context

    def versions(self) -> tuple[tuple[int, int, int], ...]:
        """What changes when one of the files is written or replaced. Raises OSError."""
        paths = [self.certificate, self.key, *([self.ca_certs] if self.ca_certs else [])]
        found = [Path(path).stat() for path in paths]
        return tuple((status.st_ino, status.st_size, status.st_mtime_ns) for status in found)

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        _check_readable("--ssl-certfile", self.certificate)
        if self.key != self.certificate:
            _check_readable("--ssl-keyfile", self.key)

        def no_password() -> str:  # without it OpenSSL would ask on the terminal
            raise ConfigError(
                f"the key in {self.key} is encrypted", hint="give --ssl-keyfile-password"
            )

        password = no_password if self.password is None else self.password
        try:
            context.load_cert_chain(self.certificate, self.key, password)
        except (OSError, ValueError) as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> ConfigError:
        """Which of the two files, or what between them, is at fault."""
        code = getattr(error, "reason", None) or ""
        if code == "KEY_VALUES_MISMATCH":
            return ConfigError(
                f"the key in {self.key} is not that of the certificate {self.certificate}",
                hint="give the two that were made together; the server's certificate comes first",
            )
        if self.password is not None and ("DECRYPT" in code or not _holds(self.key, "CERTIFICATE")):
            return ConfigError(
                f"--ssl-keyfile {self.key}: {_explain(error)}",
                hint="check --ssl-keyfile-password and that the file is a key in PEM format",
            )
        if not _holds(self.certificate, "CERTIFICATE"):
            return ConfigError(
                f"--ssl-certfile {self.certificate} holds no certificate",
                hint="give a certificate in PEM format, followed by those above it",
            )
        if not _holds(self.key, "PRIVATE KEY"):
            return ConfigError(
                f"no private key in {self.key}", hint="give --ssl-keyfile a key in PEM format"
            )
        return ConfigError(
            f"--ssl-certfile {self.certificate} with key {self.key}: {_explain(error)}",
            hint="give certificate and key in PEM format",
        )


class ServerTls:
    """The context of new connections; with ``--enable-ssl-refresh`` it follows its files.

    Raises:
        ConfigError: A file cannot be used.
    """

    def __init__(self, files: TlsFiles, *, follows_files: bool) -> None:
        self._files, self._follows = files, follows_files
        self.context = files.context()
        self._versions = files.versions()

    def refresh(self) -> None:
        """Read files that have changed; what cannot be used is logged, and the former stay."""
        if not self._follows:
            return
        try:
            versions = self._files.versions()
            if versions == self._versions:
                return
            self._versions = versions
            self.context = self._files.context()
        except OSError:  # in the middle of being replaced
            return
        except ConfigError as error:
            logger.warning("the former certificate stays: %s (%s)", error.message, error.hint)
        else:
            logger.info(
                "new connections get the certificate that is now in %s", self._files.certificate
            )


def _check_readable(flag: str, path: str) -> None:
    try:
        if not Path(path).is_file():
            raise ConfigError(f"{flag} {path}: no such file", hint="give a file in PEM format")
        with Path(path).open("rb") as file:
            file.read(1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{flag} {path}: {reason(error)}", hint="give a readable file") from error


def _holds(path: str, kind: str) -> bool:
    try:
        return f"{kind}-----" in Path(path).read_text("latin-1")
    except OSError:
        return False


def _explain(error: Exception) -> str:
    """OpenSSL's reason in words, where there is one."""
    code = getattr(error, "reason", None)
    return code.replace("_", " ").lower() if code else reason(error)
