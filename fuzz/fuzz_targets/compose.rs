//! Any two files and an override compose or are refused, and what composes resolves or is refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use hydra_config::{ComposeContext, Composition, ConfTree};

fuzz_target!(|input: (&str, &str, &str)| {
    let (primary, option, given) = input;
    let tree = ConfTree::from_files([("config.yaml", primary), ("g/a.yaml", option), ("g/h/b.yaml", option)]);
    if let Ok(composition) = Composition::new(&tree, &[given.to_owned()], &ComposeContext::current("app")) {
        let _ = composition.resolved_job();
        let _ = composition.resolved_hydra("run.dir");
    }
});
