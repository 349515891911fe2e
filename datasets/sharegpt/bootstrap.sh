#!/bin/sh
cd "$(dirname "$0")/../.." && exec llmprof-tui bootstrap datasets sharegpt "$@"
