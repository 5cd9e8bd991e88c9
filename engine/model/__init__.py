"""Model configuration, per-architecture differences as data, and the one decoder body."""
