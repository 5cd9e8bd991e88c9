"""The chat screen: tabs, transcript, composer and what stands around them, and every action.

May know every other room but the window; of the dialogs, what they are asked with and answer.
"""
