"""A prefix cache that remembers which tokens it has seen, as vLLM's does, without holding anything of them.

Source: vLLM's block hashes (`v1/core/kv_cache_utils.py`): the salt enters the first block's hash and, the hashes being chained,
all that follow; an image's hash enters the block that holds its tokens; only full blocks are kept; at least one token of a prompt
is always computed.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

BLOCK_TOKENS = 64


class PrefixCache:
    """The last `num_blocks` blocks of `BLOCK_TOKENS` tokens; the least recently used go first."""

    def __init__(self, num_blocks: int = 1 << 17) -> None:
        self._num_blocks = num_blocks
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def keep(self, block_hash: bytes) -> bool:
        """Keep a block as the most recently used one. Returns whether it was there."""
        known = block_hash in self._blocks
        self._blocks[block_hash] = None
        self._blocks.move_to_end(block_hash)
        if len(self._blocks) > self._num_blocks:
            self._blocks.popitem(last=False)
        return known


class CachedSequence:
    """One prompt and its answer, block by block, in a `PrefixCache`.

    `image_token_id` begins an image in the prompt; `image_hashes` are in prompt order. Images that no token begins count from the
    first block on.
    """

    def __init__(
        self, cache: PrefixCache, salt: str, image_hashes: Sequence[str] = (), image_token_id: int | None = None
    ) -> None:
        self._cache = cache
        self._image_token_id = image_token_id
        self._image_hashes = list(image_hashes) if image_token_id is not None else []
        root = [salt] if image_token_id is not None else [salt, *image_hashes]
        self._hash = blake2b("\0".join(root).encode("utf-8", "surrogatepass"), digest_size=16).digest()
        self._tail: list[int] = []

    def prefill(self, token_ids: Sequence[int]) -> int:
        """Compute the prompt; the number of its tokens that were found: whole blocks from the start, never the last token."""
        num_found = self.extend(token_ids)
        return min(num_found, (len(token_ids) - 1) // BLOCK_TOKENS) * BLOCK_TOKENS

    def extend(self, token_ids: Sequence[int]) -> int:
        """Add tokens; the number of leading blocks among those that they complete that were found."""
        self._tail += token_ids
        num_found, found = 0, True
        num_full_tokens = len(self._tail) // BLOCK_TOKENS * BLOCK_TOKENS
        for start in range(0, num_full_tokens, BLOCK_TOKENS):
            found = self._keep(self._tail[start : start + BLOCK_TOKENS]) and found
            num_found += found
        if num_full_tokens:
            del self._tail[:num_full_tokens]
        return num_found

    def _keep(self, block: list[int]) -> bool:
        digest = blake2b(self._hash, digest_size=16)
        digest.update(array("q", block).tobytes())
        num_images = block.count(self._image_token_id) if self._image_hashes and self._image_token_id is not None else 0
        for image_hash in self._image_hashes[:num_images]:
            digest.update(image_hash.encode("utf-8", "surrogatepass"))
        del self._image_hashes[:num_images]
        self._hash = digest.digest()
        return self._cache.keep(self._hash)
