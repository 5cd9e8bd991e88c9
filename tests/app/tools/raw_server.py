"""A server of a few lines, quick to start, that misbehaves as its arguments say."""

import base64
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

MODE = sys.argv[1] if len(sys.argv) > 1 else ""
TOOLS = [
    {
        "name": "echo",
        "description": "Says it again",
        "inputSchema": {
            "type": "object",
            "properties": {"text": {"type": "string", "pattern": "(a+)+$"}},
            "required": ["text"],
            "additionalProperties": False,
        },
    },
    {"name": "pictures", "inputSchema": {"type": "object"}},
    {"name": "structured", "inputSchema": {"type": "object"}},
    {"name": "environment", "inputSchema": {"type": "object"}},
    {"name": "fails", "inputSchema": {"type": "object"}},
    {"name": "refuses", "inputSchema": {"type": "object"}},
    {"name": "hangs", "inputSchema": {"type": "object"}},
    {"name": "dies", "inputSchema": {"type": "object"}},
    {"name": "floods", "inputSchema": {"type": "object"}},
    {"name": "odd name", "inputSchema": {"type": "object"}},
]


def write(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def texts(*found, **more):
    return {"content": [{"type": "text", "text": text} for text in found], **more}


def called(number, name, arguments):
    if name == "echo":
        write({"id": number, "result": texts(arguments["text"])})
    elif name == "pictures":
        data = base64.b64encode(b"x" * 3000).decode()
        parts = [
            {"type": "text", "text": "seen"},
            {"type": "image", "data": data, "mimeType": "image/png"},
            {"type": "resource_link", "name": "notes", "uri": "file:///notes"},
            {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}},
            {"type": "resource", "resource": {"uri": "file:///b", "blob": data, "mimeType": "x/y"}},
        ]
        write({"id": number, "result": {"content": parts}})
    elif name == "structured":
        write({"id": number, "result": {"content": [], "structuredContent": {"degrees": 21}}})
    elif name == "environment":
        write({"id": number, "result": texts(json.dumps(dict(os.environ)))})
    elif name == "fails":
        write({"id": number, "result": texts("the disk is full", isError=True)})
    elif name == "refuses":
        write({"id": number, "error": {"code": -32602, "message": "no such file"}})
    elif name == "dies":
        print("last words", file=sys.stderr, flush=True)
        os._exit(3)
    elif name == "floods":
        note = {"level": "info", "data": "x" * 60_000}
        while True:
            write({"method": "notifications/message", "params": note})


def main():
    if MODE == "child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(sys.argv[2]).write_text(str(child.pid))
    if MODE == "stays":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if MODE == "talks":
        print("welcome to this server", flush=True)
        print("\x1b[2Jnoise", file=sys.stderr, flush=True)
    if MODE == "silent":
        time.sleep(600)
    if MODE == "junk":
        print("hello there", flush=True)
        sys.exit(5)
    if MODE == "ends":
        sys.exit(4)
    while MODE == "endless":
        sys.stdout.write("x" * 65536)
    for line in sys.stdin:
        message = json.loads(line)
        method, number = message.get("method"), message.get("id")
        if method == "initialize":
            result = {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "raw", "version": "1"},
            }
            write({"id": number, "result": result})
        elif method == "tools/list":
            write({"id": number, "result": {"tools": TOOLS}})
        elif method == "tools/call":
            called(number, message["params"]["name"], message["params"].get("arguments") or {})
    while MODE == "stays":
        time.sleep(600)


main()
