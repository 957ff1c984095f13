"""Agents with memory: a run that starts from a thread's turns and writes its own back.

Source: spec R19 to R24; design, section 6.
"""
