"""Digests and hashes that several parts must compute alike."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

_FNV_OFFSET = 2166136261
_FNV_PRIME = 16777619
_canonical = msgspec.json.Encoder(order="sorted")


def fnv1a32(text: str) -> int:
    """FNV-1a, 32 bits, over UTF-8: the hash that JetStream's `partition()` uses (nats.md §4)."""
    value = _FNV_OFFSET
    for byte in text.encode():
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFF
    return value


def mixed(text: str) -> int:
    """A hash of 32 bits that differs in all of them for texts that differ in one late character (MurmurHash3's finalizer over FNV)."""
    value = fnv1a32(text)
    value ^= value >> 16
    value = (value * 0x85EBCA6B) & 0xFFFFFFFF
    value ^= value >> 13
    value = (value * 0xC2B2AE35) & 0xFFFFFFFF
    return value ^ (value >> 16)


def json_digest(value: Any) -> str:
    """16 hex digits that are equal for JSON values that are equal, whatever the order of their keys."""
    return hashlib.sha256(_canonical.encode(value)).hexdigest()[:16]


def template_digest(spec: dict[str, Any]) -> str:
    """The intent of a template-mode pod: what its sandbox's pods are built from, the shard patches included."""
    return json_digest([spec.get("template"), spec.get("shardPatches")])


def spec_digest(spec: dict[str, Any]) -> str:
    """A BatchSandbox's spec, `pause` apart: whether anything else was edited (DESIGN §6, Intent)."""
    return json_digest({key: value for key, value in spec.items() if key != "pause"})
