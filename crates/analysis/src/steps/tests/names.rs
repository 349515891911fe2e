//! Classes of kernel names that frameworks and libraries use.

use std::path::Path;

use proptest::prelude::*;

use super::*;
use llmprof_event::kernels::names::demangled;

fn check(file: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/kernel_names").join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    let mut wrong = Vec::new();
    let mut names = 0;
    for line in text.lines() {
        let (name, wanted) = line.split_once('\t').unwrap_or_else(|| panic!("{file}: no tab in {line}"));
        let found = Class::from_name(&demangled(name)).to_string();
        names += 1;
        if found != wanted {
            wrong.push(format!("{found} instead of {wanted}: {name}"));
        }
    }
    assert!(names >= 15, "{file} has {names} names");
    assert!(wrong.is_empty(), "{file}:\n{}", wrong.join("\n"));
}

#[test]
fn of_pytorch() {
    check("pytorch_eager.tsv");
}

#[test]
fn of_inductor() {
    check("inductor.tsv");
}

#[test]
fn of_vllm() {
    check("vllm.tsv");
}

#[test]
fn of_flashinfer_and_sglang() {
    check("flashinfer.tsv");
}

#[test]
fn of_llama_cpp() {
    check("llama_cpp.tsv");
}

#[test]
fn of_tensorrt_llm() {
    check("tensorrt_llm.tsv");
}

#[test]
fn of_nccl_and_all_reduces() {
    check("collectives.tsv");
}

#[test]
fn words_are_matched_where_they_begin() {
    for (name, wanted) in [
        ("cudaDeviceProperties_kernel", Class::Other),
        ("rope_neox", Class::Rope),
        ("applyRopeKernel", Class::Rope),
        ("stop_processing", Class::Other),
        ("", Class::Other),
        ("ÄÖ rope", Class::Rope),
    ] {
        assert_eq!(Class::from_name(name), wanted, "{name}");
    }
}

proptest! {
    #[test]
    fn any_name_has_a_class(name in ".{0,80}|(triton_|nccl)[a-z_A-Z]{0,60}") {
        let class = Class::from_name(&name);
        prop_assert!(!class.to_string().is_empty());
    }
}
