"""A tier's URL: valid forms, its one canonical form, and a sentence for everything else."""

from __future__ import annotations

import pytest

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.objectstore.url import TierUrl, parse_tier
from kafkawire.tiering.store.open import open_store


@pytest.mark.parametrize(
    ("url", "tier", "written"),
    [
        ("s3://bucket", TierUrl("bucket"), "s3://bucket"),
        ("s3://bucket/", TierUrl("bucket"), "s3://bucket"),
        ("s3://Old_bucket.x/a/b c/", TierUrl("Old_bucket.x", "a/b c"), "s3://Old_bucket.x/a/b%20c"),
        (
            "s3://bucket/p?region=eu-central-1&endpoint=http://127.0.0.1:9000/&path_style=true",
            TierUrl("bucket", "p", "", "eu-central-1", "http://127.0.0.1:9000", True),
            "s3://bucket/p?region=eu-central-1&endpoint=http%3A%2F%2F127.0.0.1%3A9000"
            "&path_style=true",
        ),
        (
            "s3://bucket?sse_kms_key_id=a/b&sse=aws:kms&create=false&path_style=false",
            TierUrl("bucket", path_style=False, sse="aws:kms", sse_kms_key_id="a/b", create=False),
            "s3://bucket?path_style=false&sse=aws%3Akms&sse_kms_key_id=a%2Fb&create=false",
        ),
        (
            "s3://bucket?sse=aws:kms&sse_bucket_key=true&bucket_owner=123456789012",
            TierUrl("bucket", sse="aws:kms", sse_bucket_key=True, bucket_owner="123456789012"),
            None,
        ),
        ("s3://bucket?sse=AES256&create=true", TierUrl("bucket", sse="AES256"), None),
        ("/data/tier/", TierUrl(folder="/data/tier"), "file:///data/tier"),
        ("file:///data/a%20tier", TierUrl(folder="/data/a tier"), "file:///data/a%20tier"),
        ("file://localhost/tier?create=false", TierUrl(folder="/tier", create=False), None),
        ("tier", TierUrl(folder="/base/tier"), "file:///base/tier"),
        ("../x/./tier", TierUrl(folder="/x/tier"), "file:///x/tier"),
        ("/data/50%?", TierUrl(folder="/data/50%?"), "file:///data/50%25%3F"),
    ],
)
def test_valid_urls(url: str, tier: TierUrl, written: str | None) -> None:
    found = parse_tier(url, "/base")
    assert found == tier
    assert parse_tier(found.url) == tier
    assert written is None or found.url == written


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "0 characters"),
        ("s3://b\nucket", "printable"),
        ("x" * 2001, "2001 characters"),
        ("s3://", "no bucket"),
        ("s3:/bucket", "no bucket"),
        ("s3:///prefix", "no bucket"),
        ("s3://ab", "'ab' in 's3://ab' is no bucket"),
        ("s3://bu cket", "no bucket"),
        ("s3://bucket/a//b", "a part of the key 'a//b' is empty or begins with a dot"),
        ("s3://bucket/../b", "begins with a dot"),
        ("s3://bucket/p?regoin=x", "the option 'regoin' in 's3://bucket/p?regoin=x' is not known"),
        ("s3://bucket/p?region=x&region=y", "given twice"),
        ("s3://bucket/p?region=EU", "must be a region"),
        ("s3://bucket/p?region=", "must be a region"),
        ("s3://bucket/p?endpoint=localhost:9000", "must be http://HOST:PORT"),
        ("s3://bucket/p?endpoint=http://u:p@host", "holds credentials"),
        ("s3://bucket/p?path_style=yes", "must be true or false"),
        ("s3://bucket/p?create=", "must be true or false"),
        ("s3://bucket/p?sse=DES", "must be AES256 or aws:kms"),
        ("s3://bucket/p?sse_kms_key_id=k", "needs sse=aws:kms"),
        ("s3://bucket/p?sse=AES256&sse_bucket_key=true", "needs sse=aws:kms"),
        ("s3://bucket/p?bucket_owner=me", "must be the 12 digits"),
        ("s3://bucket/p?sse=AES256&sse_kms_key_id=k", "needs sse=aws:kms"),
        ("s3://bucket/p#x", "'#'"),
        ("file:tier", "names no folder"),
        ("file://host/tier", "names no folder"),
        ("file:///", "is the root"),
        ("file:///tier?region=x", "create are allowed"),
        ("gs://bucket/x", "no tier that is known"),
        ("https://bucket.s3.amazonaws.com", "no tier that is known"),
        ("S4:bucket", "no tier that is known"),
    ],
)
def test_invalid_urls_are_refused(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_tier(url)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["s3://AKIA:hush@bucket/p", "https://AKIA:hush@bucket",
     "s3://bucket/p?endpoint=http://AKIA:hush@host:9000",
     "s3://bucket/p?endpoint=http%3a%2F%2FAKIA%3Ahush%40host"],
)  # fmt: skip
def test_credentials_are_not_in_error_messages(url: str) -> None:
    with pytest.raises(ValueError, match=r"credentials|no tier") as caught:
        parse_tier(url)
    assert "hush" not in str(caught.value)


async def test_broker_settings_are_passed_to_store() -> None:
    config = BrokerConfig({"tier.cache.bytes": str(16 << 20)})
    store = open_store("s3://bucket/p", config)
    assert len(store.memory) == 16 << 20
    assert store.pid is None
    await store.close()
