"""Attention on CPUs as compiled kernels: of few new tokens of each sequence, and of prompts."""
