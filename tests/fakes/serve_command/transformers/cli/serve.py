"""The server command: it answers /health, and has of the real one what nki_hf/serve.py and http_serving/process.py use."""

import http.server
import sys
from types import SimpleNamespace


class _Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()


class Serve:
    def __init__(self, *, force_model, host, port, non_blocking, **options):
        if force_model == "fails":
            sys.exit("no such model")
        self._generation_state = SimpleNamespace(_cb_config=SimpleNamespace(), get_manager=lambda model_id, use_cb: None)
        listening = http.server.HTTPServer((host, port), _Health)

        def run():
            if force_model == "ends":
                listening.handle_request()
                listening.server_close()
            else:
                listening.serve_forever()

        self.server = SimpleNamespace(run=run)
        self.start_server()

    def kill_server(self):
        pass
