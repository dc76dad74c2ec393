"""The server command: it answers /health, and has of the real one what examples/http_serving/process.py uses."""

import http.server
import sys
import threading
from types import SimpleNamespace


class _Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()


class Serve:
    def __init__(self, *, force_model, host, port, non_blocking, **options):
        if force_model == "fails":
            sys.exit("no such model")
        self._generation_state = SimpleNamespace(_cb_config=SimpleNamespace())
        listening = http.server.HTTPServer((host, port), _Health)

        def run():
            if force_model == "ends":
                listening.handle_request()
                listening.server_close()
            else:
                listening.serve_forever()

        self._thread = threading.Thread(target=run)
        self._thread.start()
