"""A process for tests: `twostroke serve` around a scripted engine; its argument is JSON."""

from __future__ import annotations

import json
import sys
import time

from tests.server.scripted import TEMPLATE, Script, ScriptedEngine
from twostroke.core.config import EngineConfig, ModelOptions
from twostroke.core.errors import ModelLoadError
from twostroke.engine.clients.loaded_model import LoadedModel
from twostroke.gateway.options import GatewayOptions
from twostroke.server.options import ServerOptions
from twostroke.server.process import run_server


def main() -> None:
    options = json.loads(sys.argv[1])
    script = Script(**options.pop("script", {}))
    template = options.pop("template", TEMPLATE)
    gateway = GatewayOptions(**options.pop("gateway", {}))
    load_seconds, fail = options.pop("load_seconds", 0), options.pop("fail", False)

    def load(_: EngineConfig) -> LoadedModel:
        time.sleep(load_seconds)
        if fail:
            raise ModelLoadError("no weights", hint="bring some")
        return ScriptedEngine(script, template=template).loaded_model()

    run_server(
        EngineConfig(model=ModelOptions(model="scripted")), ServerOptions(**options), load, gateway
    )


if __name__ == "__main__":
    main()
