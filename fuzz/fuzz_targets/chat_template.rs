//! Any text is a chat template or refused; rendering it ends, with a text of limited length or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::workload::text::{Tokenizer, Vocabulary};

fuzz_target!(|template: &str| {
    llmprof_fuzz::contain_panics();
    let vocabulary = Vocabulary {
        kind: "gpt2".to_owned(),
        tokens: ["<s>", "</s>", "a", "b"].map(str::to_owned).to_vec(),
        types: vec![3, 3, 1, 1],
        bos: Some(0),
        stop_ids: vec![1],
        chat_template: Some(template.to_owned()),
        ..Vocabulary::default()
    };
    if let Ok(tokenizer) = Tokenizer::from_vocabulary(&vocabulary) {
        let _ = tokenizer.prompt_ids("ab", true);
    }
});
