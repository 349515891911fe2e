//! The ranges of a run, as a tool named in the environment receives them.

use std::{fs, process::Command};

use crate::common::{program, tiny_model};

/// A tool that writes every range to a file, in the order of the calls. It takes the functions of all modules, as nsys does.
const TOOL: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { uint16_t version, size; uint32_t category; int32_t color_type; uint32_t color; int32_t payload_type, reserved;
                 uint64_t payload; int32_t message_type; const void *message; } attributes;
typedef void **table;
typedef struct { size_t size; int (*module)(int, table **, unsigned *); } callbacks;
typedef struct { size_t size; uint32_t version, reserved; void (*set)(uint32_t); } version_info;

static void say(const char *what, const char *name) {
    FILE *out = fopen(getenv("RANGES"), "a");
    fprintf(out, "%s %s\n", what, name);
    fclose(out);
}
static void *domain(const char *name) { say("domain", name); return strdup(name); }
static void *name(void *domain, const char *text) { return strdup(text); }
static int push(void *domain, const attributes *a) {
    if (a->version != 3 || a->size != 48 || a->message_type != 3) abort();
    say("push", a->message);
    return 0;
}
static int pop(void *domain) { say("pop", domain); return 0; }

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t)) {
    const version_info *info = export_table(3);
    const callbacks *all = export_table(1);
    if (info->size < sizeof *info || info->version != 3 || all->size < sizeof *all) return 0;
    info->set(3);
    for (int module = 1; module <= 6; module++) {
        table *functions;
        unsigned size;
        if (!all->module(module, &functions, &size) || size < 7) return 0;
        if (module != 5) continue;
        *functions[12] = (void *)domain;
        *functions[10] = (void *)name;
        *functions[4] = (void *)push;
        *functions[5] = (void *)pop;
    }
    return !getenv("REFUSES");
}
"#;

#[test]
fn a_tool_sees_requests_phases_and_steps() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path(), |_| {});
    let (source, tool, ranges) =
        (dir.path().join("tool.c"), dir.path().join("tool.so"), dir.path().join("ranges"));
    fs::write(&source, TOOL).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-w", "-o"]).arg(&tool).arg(&source).status();
    assert!(built.unwrap().success());
    let run = |variables: &[(&str, &std::path::Path)]| {
        let mut run = program(dir.path());
        run.args(["run", "--quiet", "model.config_json=tiny.json", "runtime.requests=1", "runtime.warmup=0"]);
        run.args(["infer.max_new_tokens=3", "dataset.prompt_tokens=4", "output.record=false"]);
        run.envs(variables.iter().copied()).env("RANGES", &ranges);
        let done = run.output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let seen = fs::read_to_string(&ranges).unwrap_or_default();
        let _ = fs::remove_file(&ranges);
        (seen, String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let (seen, _) = run(&[("NVTX_INJECTION64_PATH", &tool)]);
    let expected = "domain llmprof\npush request\npush prefill\npop llmprof\npush decode\npush decode_step\npop llmprof\n\
                    push decode_step\npop llmprof\npop llmprof\npop llmprof\n";
    assert_eq!(seen, expected);

    // With a tool that refuses or does not exist, the run continues without ranges.
    assert_eq!(run(&[("NVTX_INJECTION64_PATH", &tool), ("REFUSES", "1".as_ref())]).0, "");
    assert_eq!(run(&[("NVTX_INJECTION64_PATH", "/nowhere/tool.so".as_ref())]).0, "");
    assert_eq!(run(&[]).0, "");
}
