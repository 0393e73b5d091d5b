"""Parse the URL of a tier.

`s3://BUCKET/PREFIX` or a folder (`file:///DIR`, `/DIR`, `DIR`). Options of S3 follow a question
mark: `region`, `endpoint`, `path_style=true|false`, `sse=AES256|aws:kms`, `sse_kms_key_id`,
`sse_bucket_key=true|false`, `bucket_owner` (an AWS account); of both: `create=false`, if a missing
bucket or folder must not be created. Credentials come from boto3 and are never in a URL, which is
logged and stored.

Another scheme is that of a plug-in (kafkawire.plugins.STORES), `SCHEME://BUCKET/PREFIX`: of its
options `create` and `endpoint` mean the same, the plug-in checks all others.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from kafkawire.plugins import (
    STORES,
    describe_plugin,
    has_plugin,
    list_plugins,
    load_plugin,
    sentence_of,
)

# Validation of keys.


MAX_KEY_BYTES = 1024
"""S3's limit of a key, prefix included."""


def check_key(key: str) -> None:
    """Raise ValueError unless the key is valid and unambiguous in both kinds of storage.

    ".." would lead out of a folder, and names that begin with a dot are reserved there.
    """
    size = len(key.encode("utf-8", "surrogatepass"))
    if not 0 < size <= MAX_KEY_BYTES:
        raise ValueError(f"a key of {size} bytes is none: 1 to {MAX_KEY_BYTES} are allowed")
    if not key.isprintable():
        raise ValueError(f"the key {key!r} holds characters that cannot be printed")
    if any(part in ("", ".", "..") or part.startswith(".") for part in key.split("/")):
        raise ValueError(f"a part of the key {key!r} is empty or begins with a dot")


MAX_URL_CHARS = 2000
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_REGION = re.compile(r"[a-z0-9-]{1,40}")
_ENDPOINT = re.compile(r"https?://[^/?#@\s]+/?")
_BOOLEANS = {"true": True, "false": False}
_ENCRYPTIONS = ("AES256", "aws:kms")
_PLUGGED_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_ACCOUNT = re.compile(r"[0-9]{12}")
_S3_OPTIONS = (
    "region", "endpoint", "path_style", "sse", "sse_kms_key_id", "sse_bucket_key", "bucket_owner",
    "create",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TierUrl:
    """A tier: a bucket with a prefix, or a folder. Unset options are None or empty."""

    bucket: str = ""
    prefix: str = ""
    """The prefix without slashes around it."""
    folder: str = ""
    """The absolute path."""
    region: str | None = None
    endpoint: str | None = None
    path_style: bool | None = None
    sse: str | None = None
    sse_kms_key_id: str | None = None
    sse_bucket_key: bool | None = None
    """Whether S3 encrypts with a key of the bucket, which calls KMS less often."""
    bucket_owner: str | None = None
    """The AWS account that must own the bucket; requests to another's bucket are refused."""
    create: bool = True
    scheme: str = ""
    """Of the plug-in of the store; empty for S3 and folders."""
    options: tuple[tuple[str, str], ...] = ()
    """The plug-in's own options, by name."""

    @property
    def is_bucket(self) -> bool:
        """Whether it is a bucket of any kind of store; otherwise it is a folder."""
        return bool(self.bucket)

    @property
    def is_s3(self) -> bool:
        return self.is_bucket and not self.scheme

    @property
    def path(self) -> str:
        """The prefix in the bucket, or the folder."""
        return self.prefix if self.is_bucket else self.folder

    @property
    def location(self) -> str:
        """The URL without options and quoting, for other libraries."""
        return (
            f"{self.scheme or 's3'}://{self.bucket}/{self.prefix}".rstrip("/")
            if self.bucket
            else (f"file://{self.folder}")
        )

    @property
    def url(self) -> str:
        """The canonical URL of the tier."""
        options = {
            "region": self.region,
            "endpoint": self.endpoint,
            "path_style": _text(self.path_style),
            "sse": self.sse,
            "sse_kms_key_id": self.sse_kms_key_id,
            "sse_bucket_key": _text(self.sse_bucket_key),
            "bucket_owner": self.bucket_owner,
            "create": None if self.create else "false",
            **dict(self.options),
        }
        said = urlencode({name: value for name, value in options.items() if value is not None})
        place = f"{self.bucket}/{quote(self.prefix)}" if self.is_bucket else quote(self.folder)
        scheme = (self.scheme or "s3") if self.is_bucket else "file"
        return f"{scheme}://{place.rstrip('/')}" + (f"?{said}" if said else "")

    def inside(self, path: str) -> TierUrl:
        """Return the tier at a path below this one, with the same options."""
        if self.is_bucket:
            return replace(self, prefix=f"{self.prefix}/{path}".lstrip("/"))
        return replace(self, folder=os.path.join(self.folder, path))

    def outside(self, path: str) -> TierUrl | None:
        """Return the tier that this one is `inside` of by a path; None if there is none."""
        place = self.path.lstrip("/")
        if not f"/{place}".endswith(f"/{path}"):
            return None
        outer = place[: -len(path)].rstrip("/")
        if self.is_bucket:
            return replace(self, prefix=outer)
        return replace(self, folder=f"/{outer}") if outer else None


def parse_tier(url: str, base: str = "", what: str = "tier") -> TierUrl:
    """Parse the URL of a tier, or of another location that is named in errors by `what`. Raises
    ValueError with one sentence that names what is allowed.

    A relative folder is relative to `base` (the working folder).
    """
    if not url or len(url) > MAX_URL_CHARS or not url.isprintable():
        raise ValueError(
            f"a {what}'s URL of {len(url)} characters is none: 1 to {MAX_URL_CHARS} printable "
            "ones are allowed, as s3://BUCKET/PREFIX or a folder"
        )
    parts = urlsplit(url)
    if parts.scheme == "s3":
        return _bucket(url, parts)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise ValueError(f"{url!r} names no folder of this machine: write file:///FOLDER")
        if not unquote(parts.path).strip("/"):
            raise ValueError(f"{url!r} is the root of this machine's files: name a folder")
        options = _options(url, parts, ("create",))
        folder = os.path.normpath(unquote(parts.path))
        return TierUrl(folder=folder, create=_flag(url, options, "create") is not False)
    if parts.scheme and has_plugin(STORES, parts.scheme):
        return _parse_plugged(url, parts)
    if parts.scheme or "://" in url:
        raise ValueError(
            f"{_harmless(url)!r} is no {what} that is known: s3://BUCKET/PREFIX, file:///FOLDER or "
            f"a folder's path are allowed, and the schemes of installed plug-ins: "
            f"{', '.join(list_plugins(STORES)) or 'there are none'}"
        )
    return TierUrl(folder=os.path.normpath(os.path.join(base or os.getcwd(), url)))


def _bucket(url: str, parts: SplitResult) -> TierUrl:
    endpoint = dict(parse_qsl(parts.query)).get("endpoint", "")
    if "@" in parts.netloc or "@" in endpoint:
        raise ValueError(
            f"{_harmless(url)!r} holds credentials: leave them to the environment or the profile "
            "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE)"
        )
    if not _BUCKET.fullmatch(parts.netloc):
        raise ValueError(
            f"{parts.netloc!r} in {url!r} is no bucket: 3 to 255 letters, digits, '.', '-' and "
            "'_' are allowed, as in s3://BUCKET/PREFIX"
        )
    prefix = unquote(parts.path).strip("/")
    if prefix:
        try:
            check_key(prefix)
        except ValueError as problem:
            raise ValueError(f"the prefix in {url!r} is none: {problem}") from None
    options = _options(url, parts, _S3_OPTIONS)
    for name, pattern, like in (
        ("region", _REGION, "a region like eu-central-1"),
        ("endpoint", _ENDPOINT, "http://HOST:PORT or https://HOST"),
        ("bucket_owner", _ACCOUNT, "the 12 digits of an AWS account"),
    ):
        if name in options and not pattern.fullmatch(options[name]):
            raise ValueError(f"{name}={options[name]!r} in {url!r} must be {like}")
    sse, key = options.get("sse"), options.get("sse_kms_key_id")
    if sse is not None and sse not in _ENCRYPTIONS:
        raise ValueError(f"sse={sse!r} in {url!r} must be {' or '.join(_ENCRYPTIONS)}")
    if key is not None and sse != "aws:kms":
        raise ValueError(f"sse_kms_key_id={key!r} in {url!r} needs sse=aws:kms too")
    bucket_key = _flag(url, options, "sse_bucket_key")
    if bucket_key is not None and sse != "aws:kms":
        raise ValueError(f"sse_bucket_key={_text(bucket_key)} in {url!r} needs sse=aws:kms too")
    return TierUrl(
        bucket=parts.netloc,
        prefix=prefix,
        region=options.get("region"),
        endpoint=options["endpoint"].rstrip("/") if "endpoint" in options else None,
        path_style=_flag(url, options, "path_style"),
        sse=sse,
        sse_kms_key_id=key,
        sse_bucket_key=bucket_key,
        bucket_owner=options.get("bucket_owner"),
        create=_flag(url, options, "create") is not False,
    )


def _parse_plugged(url: str, parts: SplitResult) -> TierUrl:
    """Parse the URL of a plug-in's store, which checks it."""
    scheme = parts.scheme
    given = dict(parse_qsl(parts.query))
    if "@" in parts.netloc or "@" in given.get("endpoint", ""):
        raise ValueError(f"{_harmless(url)!r} holds credentials: leave them to the environment")
    if not _PLUGGED_BUCKET.fullmatch(parts.netloc):
        raise ValueError(
            f"{parts.netloc!r} in {url!r} is no bucket, as in {scheme}://BUCKET/PREFIX"
        )
    prefix = unquote(parts.path).strip("/")
    if prefix:
        try:
            check_key(prefix)
        except ValueError as problem:
            raise ValueError(f"the prefix in {url!r} is none: {problem}") from None
    options = _options(url, parts, tuple(given))
    create = _flag(url, options, "create") is not False
    options.pop("create", "")
    endpoint = options.pop("endpoint", None)
    if endpoint is not None and not _ENDPOINT.fullmatch(endpoint):
        raise ValueError(
            f"endpoint={endpoint!r} in {url!r} must be http://HOST:PORT or https://HOST"
        )
    tier = TierUrl(
        parts.netloc, prefix, endpoint=endpoint.rstrip("/") if endpoint else None, create=create,
        scheme=scheme, options=tuple(sorted(options.items())),
    )  # fmt: skip
    plugin = load_plugin(STORES, scheme)
    try:
        plugin.check(tier)
    except ValueError as problem:
        raise ValueError(f"{url!r}: {problem}") from None
    except Exception as failure:
        what = describe_plugin(STORES, scheme)
        raise ValueError(f"{url!r}: {what} cannot be used: {sentence_of(failure)}") from None
    return tier


def _text(flag: bool | None) -> str | None:
    return None if flag is None else str(flag).lower()


def _options(url: str, parts: SplitResult, allowed: tuple[str, ...]) -> dict[str, str]:
    if parts.fragment:
        raise ValueError(f"{url!r} has a '#': write %23 where a name holds one")
    found: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in allowed or name in found:
            what = "given twice" if name in found else "not known"
            raise ValueError(
                f"the option {name!r} in {url!r} is {what}: {', '.join(allowed)} are allowed"
            )
        found[name] = value
    return found


def _flag(url: str, options: dict[str, str], name: str) -> bool | None:
    value = options.get(name)
    if value is not None and value not in _BOOLEANS:
        raise ValueError(f"{name}={value!r} in {url!r} must be true or false")
    return None if value is None else _BOOLEANS[value]


def _harmless(url: str) -> str:
    """Return the URL without possible secrets."""
    return re.sub(r"(//|%2F%2F)[^/?#]*(@|%40)", r"\1...\2", url, flags=re.IGNORECASE)
