"""The chat screen: tabs, transcript, composer and what stands around them, and every action.

May know every room below screens; of the dialogs, what they are asked with and answer.
"""
