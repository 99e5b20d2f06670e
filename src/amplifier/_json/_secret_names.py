"""Decides by its name whether a value is a secret: ``aws_secret_access_key`` is one, ``max_tokens`` is none."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SENSITIVE_KEYS = _words(
    "access_key access_tokens account_key amz_signature api-key api_key api_keys apikey auth auth_key auth_tokens"
    " authorization bearer connection_string consumer_key cookie cookies credential credentials decryption_key deploy_key"
    " encryption_key hmac_key jwt license_key master_key pass passcode passphrase passwd password passwords private_key"
    " privatekey pw pwd refresh_tokens secret secret_id secret_key secrets session_key shared_access_key"
    " shared_access_signature signing_key ssh_key storage_key subscription_key token"
)
"""Names of secrets. A key matches by its last words (``x-api-key``, ``accessToken``), case and separators aside."""

# These make a name sensitive at any position (password_hash), unless what follows only describes the secret.
_STRONG = frozenset(
    {("api", "key"), ("apikey",), ("password",), ("passwd",), ("passphrase",), ("secret",), ("private", "key")}
)
_DESCRIBES = _words(
    "age arn configured count dialog env error exists expires expiry field file format hint id label length manager max"
    " algorithm min mode name names path policy present prompt required reset rotation rules set status strength ttl type url"
    " version"
)
_TOKENIZER_WORDS = _words("bos cls end eos first last mask next pad per sep special start stop unk")
_KINDS_OF_PASS = _words("boarding day first full high last low multi next one render season second single third two")
_NAME_WORDS = re.compile(r"[A-Z]++(?![a-z])|[A-Z]?[a-z]+|[A-Z]+?(?=[A-Z][a-z])|[0-9]+")
_LONGEST_NAME = 120


@lru_cache(maxsize=8)
def name_matcher(keys: frozenset[str]) -> Callable[[str], bool]:
    exact = frozenset(key.lower() for key in keys)
    phrases = frozenset(tuple(word.lower() for word in _NAME_WORDS.findall(key)) for key in exact) - {()}
    longest = max(map(len, phrases), default=0)
    run_together = tuple(text for text in map("".join, phrases) if len(text) >= 5)  # "dbpassword", "accesstoken"

    @lru_cache(maxsize=2048)  # a program has few names, and asks about the same ones at every event
    def judged(name: str) -> bool:
        if name.lower() in exact:
            return True
        words = tuple(word.lower() for word in _NAME_WORDS.findall(name))
        for start in range(len(words)):
            for end in range(start + 1, min(start + longest, len(words)) + 1):
                phrase, rest = words[start:end], words[end:]
                if phrase not in phrases:
                    continue
                if all(word.isdigit() for word in rest):
                    before = words[start - 1] if start else ""
                    return not (
                        (phrase == ("token",) and before in _TOKENIZER_WORDS)
                        or (phrase == ("pass",) and before in _KINDS_OF_PASS)
                    )
                if phrase in _STRONG and _DESCRIBES.isdisjoint(rest):
                    return True
        return "".join(words).endswith(run_together)

    def is_sensitive(name: str) -> bool:
        return len(name) <= _LONGEST_NAME and judged(name)

    return is_sensitive
