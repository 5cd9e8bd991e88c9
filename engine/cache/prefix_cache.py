"""Which blocks hold the KV of which tokens: a tree with one node per full block.

A node's place is the tokens of all blocks before it and of its own, compared token by token (the
children are a dict keyed by token tuples, so a hash collision costs a comparison and can never
make a false hit). The root is a salt: KV of other models, KV dtypes or rope choices is never found.
"""

from collections.abc import Sequence as TokenIds

from engine.cache.block_owners import BlockOwners


class PrefixNode:
    """The tokens of one full block after those of its parents, and the blocks that hold their KV."""

    __slots__ = ("blocks", "children", "hosts", "parent", "tokens")

    def __init__(self, parent: "PrefixNode | None", tokens: tuple[int, ...]) -> None:
        self.parent = parent
        self.tokens = tokens
        self.children: dict[tuple[int, ...], PrefixNode] = {}
        self.blocks: list[int] = []
        """The first serves hits; the others are copies that running sequences computed beside it."""
        self.hosts: dict[int, int] = {}
        """Pool → slot of host memory that holds the same KV: the block's is 0, of windows 1 and on."""


class PrefixCache:
    """A tree per salt. Nodes without KV stay while deeper ones have some."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._roots: dict[bytes, PrefixNode] = {}
        self.owners = BlockOwners()

    def root(self, salt: bytes) -> PrefixNode:
        """The node before the first block."""
        root = self._roots.get(salt)
        if root is None:
            root = self._roots[salt] = PrefixNode(None, ())
        return root

    def match(self, token_ids: TokenIds[int], salt: bytes) -> tuple[list[int], list[PrefixNode]]:
        """The longest indexed prefix of `token_ids` in full blocks.

        First the blocks on the device, then, where these end, nodes whose KV is in host memory.
        """
        size, node = self._block_size, self.root(salt)
        blocks: list[int] = []
        hosted: list[PrefixNode] = []
        for start in range(0, len(token_ids) - size + 1, size):
            child = node.children.get(tuple(token_ids[start : start + size]))
            if child is None:
                break
            if child.blocks and not hosted:
                blocks.append(child.blocks[0])
            elif 0 in child.hosts:
                hosted.append(child)
            else:
                break
            node = child
        return blocks, hosted

    def insert(self, parent: PrefixNode, tokens: tuple[int, ...], block: int) -> PrefixNode:
        """Say that `block` holds `tokens` after `parent`; the first block to say so serves hits."""
        node = parent.children.get(tokens)
        if node is None:
            node = parent.children[tokens] = PrefixNode(parent, tokens)
        node.blocks.append(block)
        return node

    def remove(self, node: PrefixNode, block: int) -> None:
        """Forget `block`, and the nodes that nothing needs any more."""
        node.blocks.remove(block)
        self.prune(node)

    def prune(self, node: PrefixNode) -> None:
        """Forget `node` and its parents as far as they hold nothing and lead to nothing."""
        while not node.blocks and not node.hosts and not node.children and node.parent is not None:
            del node.parent.children[node.tokens]
            node = node.parent
