use crate::text::*;

/// `gpt2`: byte-level tokens of the characters of "ab 12", and three merges.
fn gpt2(pre: &str) -> Vocabulary {
    let tokens = ["<s>", "</s>", "a", "b", "c", "Ġ", "1", "2", "ab", "Ġab", "12", "<tool>", "\u{10a}"];
    Vocabulary {
        kind: "gpt2".to_owned(),
        pre: Some(pre.to_owned()),
        tokens: tokens.map(str::to_owned).to_vec(),
        merges: ["a b", "Ġ ab", "1 2"].map(str::to_owned).to_vec(),
        types: vec![3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4, 1],
        bos: Some(0),
        stop_ids: vec![1],
        ..Vocabulary::default()
    }
}

/// `llama`: pieces with scores, and byte tokens.
fn llama() -> Vocabulary {
    let pieces = ["<unk>", "<s>", "</s>", "▁", "h", "i", "hi", "▁hi", "▁h", "<0xC3>", "<0xBC>"];
    Vocabulary {
        kind: "llama".to_owned(),
        tokens: pieces.map(str::to_owned).to_vec(),
        scores: vec![0.0, 0.0, 0.0, -5.0, -6.0, -7.0, -2.0, -1.0, -3.0, 0.0, 0.0],
        types: vec![2, 3, 3, 1, 1, 1, 1, 1, 1, 6, 6],
        bos: Some(1),
        unknown: Some(0),
        stop_ids: vec![2],
        ..Vocabulary::default()
    }
}

#[test]
fn byte_level_vocabularies() {
    // pre-tokenizer, text, ids
    let table = [
        ("gpt-2", "ab ab12", vec![8, 9, 10]),
        ("smollm", "ab ab12", vec![8, 9, 6, 7]),
        ("qwen2", "ab ab12", vec![8, 9, 6, 7]),
        ("llama-bpe", "ab ab12", vec![8, 9, 10]),
        ("smollm", "<s>a<tool>b</s>", vec![0, 2, 11, 3, 1]),
    ];
    for (pre, text, ids) in table {
        let tokenizer = Tokenizer::from_vocabulary(&gpt2(pre)).unwrap();
        assert_eq!(tokenizer.prompt_ids(text, false).unwrap(), ids, "{pre} {text}");
        let plain = text.replace("<s>", "").replace("</s>", "");
        assert_eq!(tokenizer.text(&ids).unwrap(), plain, "{pre}");
    }
}

#[test]
fn sentence_piece_vocabularies() {
    let tokenizer = Tokenizer::from_vocabulary(&llama()).unwrap();
    assert_eq!(tokenizer.prompt_ids("hi hi", false).unwrap(), [1, 7, 7], "starts with <s>");
    assert_eq!(tokenizer.prompt_ids("hü", false).unwrap(), [1, 8, 9, 10], "byte fallback");
    assert_eq!(tokenizer.text(&[1, 7, 7, 8, 9, 10, 2]).unwrap(), "hi hi hü");
    let bare = Vocabulary { add_bos: Some(false), add_space_prefix: Some(false), ..llama() };
    let tokenizer = Tokenizer::from_vocabulary(&bare).unwrap();
    assert_eq!(tokenizer.prompt_ids("hi hi", false).unwrap(), [6, 7]);
}

#[test]
fn chat_templates() {
    let template = "{% for m in messages %}\n[{{ m['role'] }}] {{ m.content.strip() }}{{ eos_token }}\n\
                    {% endfor %}\n{% if add_generation_prompt %}b{% endif %}";
    let template = template.replace("[{{ m['role'] }}] ", "{{ bos_token }}");
    let with_template = Vocabulary { chat_template: Some(template), ..gpt2("smollm") };
    let tokenizer = Tokenizer::from_vocabulary(&with_template).unwrap();
    assert_eq!(tokenizer.prompt_ids("  ab ", true).unwrap(), [0, 8, 1, 12, 3]);
    assert_eq!(tokenizer.prompt_ids("ab", false).unwrap(), [8], "without chat, no template");
    let plain = Tokenizer::from_vocabulary(&gpt2("smollm")).unwrap();
    assert_eq!(plain.prompt_ids("ab", true).unwrap(), [8], "chat without a template");
    let failing = Vocabulary { chat_template: Some("{{ raise_exception('no') }}".into()), ..gpt2("smollm") };
    let error = Tokenizer::from_vocabulary(&failing).unwrap().prompt_ids("ab", true).unwrap_err();
    assert!(error.to_string().contains("no"), "{error}");
    let broken = Vocabulary { chat_template: Some("{% for %}".into()), ..gpt2("smollm") };
    let error = Tokenizer::from_vocabulary(&broken).unwrap_err().to_string();
    assert!(error.starts_with("the chat template failed") && error.contains("line 1"), "{error}");
}

#[test]
fn errors_name_the_unsupported_value() {
    let table = [
        (gpt2("jina"), "unknown pre-tokenizer \"jina\""),
        (Vocabulary { kind: "bert".to_owned(), ..gpt2("gpt-2") }, "unknown tokenizer model \"bert\""),
        (Vocabulary { merges: vec!["ab".to_owned()], ..gpt2("gpt-2") }, "the merge \"ab\" is not two tokens"),
        (Vocabulary { scores: vec![], ..llama() }, "0 scores for 11 tokens"),
    ];
    for (vocabulary, message) in table {
        let error = Tokenizer::from_vocabulary(&vocabulary).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn tokenizers_of_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let error = Tokenizer::from_dir(dir.path()).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json"), "{error}");
    let made = gpt2("smollm").tokenizer().unwrap();
    write("tokenizer.json", &made.to_string(false).unwrap());
    assert!(Tokenizer::from_dir(dir.path()).unwrap().stop_ids().is_empty());
    write(
        "tokenizer_config.json",
        r#"{"eos_token": {"content": "</s>"}, "bos_token": null, "chat_template": "{{ messages[0].content }}{{ eos_token }}"}"#,
    );
    let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
    assert_eq!(tokenizer.stop_ids(), [1]);
    assert_eq!(tokenizer.prompt_ids("ab12", true).unwrap(), [8, 6, 7, 1]);
    write("generation_config.json", r#"{"eos_token_id": [1, 4]}"#);
    assert_eq!(Tokenizer::from_dir(dir.path()).unwrap().stop_ids(), [1, 4]);
    write("tokenizer.json", "{");
    let error = Tokenizer::from_dir(dir.path()).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json is not a valid tokenizer"), "{error}");
}

#[test]
fn chat_templates_are_limited() {
    let bombs = [
        ("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "50,000 steps"),
        (
            "{% for a in range(9999) %}{{ 'x' * 100000 }}{% endfor %}",
            "its output is longer than the limit of 1.00 MB",
        ),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion limit"),
        ("{{ 'x' * 9999999999 }}", "too large"),
    ];
    for (template, message) in bombs {
        let vocabulary = Vocabulary { chat_template: Some(template.into()), ..gpt2("smollm") };
        let error = Tokenizer::from_vocabulary(&vocabulary).unwrap().prompt_ids("ab", true).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    }
    // A long message does not make a template exceed its limits.
    let twice = "{{ messages[0].content }}{{ messages[0].content }}";
    let template = ChatTemplate::new(twice.into(), None, None).unwrap();
    assert_eq!(template.user_message(&"1".repeat(600_000)).unwrap().len(), 1_200_000);
}

#[test]
fn tokenizers_that_panic_are_refused_with_a_message() {
    let charsmap = serde_json::json!({"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="});
    let dir = tempfile::tempdir().unwrap();
    let write = |change: &dyn Fn(&mut serde_json::Value)| {
        let made = gpt2("smollm").tokenizer().unwrap().to_string(false).unwrap();
        let mut json = serde_json::from_str(&made).unwrap();
        change(&mut json);
        std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    };
    write(&|json| {
        json["normalizer"] = charsmap.clone();
        json["added_tokens"][0]["normalized"] = true.into();
    });
    let error = Tokenizer::from_dir(dir.path()).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json is not a valid tokenizer: index out of bounds"), "{error}");
    write(&|json| json["normalizer"] = charsmap.clone());
    let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
    let error = tokenizer.prompt_ids("ab12", false).unwrap_err().to_string();
    assert!(error.starts_with("the tokenizer failed: index out of bounds"), "{error}");
}

#[test]
fn files_without_an_end_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/dev/zero", dir.path().join("tokenizer.json")).unwrap();
    let error = Tokenizer::from_dir(dir.path()).unwrap_err().to_string();
    assert!(error.ends_with("tokenizer.json: it is a device, not a regular file"), "{error}");
    let error = prompts::load(std::path::Path::new("/dev/zero")).unwrap_err().to_string();
    assert_eq!(error, "cannot read /dev/zero: it is a device, not a regular file");
}
