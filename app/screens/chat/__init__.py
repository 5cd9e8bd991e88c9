"""The chat screen: tabs, transcript, composer and what stands around them, and every action.

May know every other room but the dialogs' insides and the window.
"""
