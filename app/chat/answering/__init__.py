"""One answer while it is written: what ends its thoughts or a loop, and how it goes on from where it stopped.

Knows conversations and the engine's port; no tab and no widget."""
