"""All that knows the engine, pydantic-ai: its models, messages, tools, errors, and its loop.

Imported when it is first used: `import turnlog` does not import the engine. Nothing here knows of
threads or stores. Source: design, section 6.
"""
