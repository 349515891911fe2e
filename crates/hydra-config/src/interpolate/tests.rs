use super::*;
use crate::error::Origin;
use proptest::prelude::*;

fn resolved(yaml: &str) -> Result<Value, ConfigError> {
    let root: Value = serde_yaml_ng::from_str(yaml).unwrap();
    let context = ComposeContext {
        now: "2024-02-03T04:05:06[UTC]".parse().unwrap(),
        cwd: "/work dir".into(),
        job_name: "app".into(),
        job: None,
    };
    resolve(&root, "", &context, &Origins::default())
}

#[test]
fn references_are_replaced_by_values() {
    let table = [
        ("{a: 1, b: '${a}'}", "b", "1"),
        ("{a: {x: [1, 2]}, b: '${a.x}'}", "b", "[1, 2]"),
        ("{a: {x: [1, 2]}, b: '${a.x[1]}-${a.x.0}-${a[x][0]}'}", "b", "2-1-1"),
        ("{a: 1, b: 'n${a}/${ a }m'}", "b", "n1/1m"),
        ("{a: null, b: '${a}', c: 'x${a}'}", "c", "xNone"),
        ("{a: [1, x, true], c: 'x${a}'}", "c", "\"x[1, 'x', True]\""),
        ("{a: {k: 7}, which: k, b: '${a.${which}}'}", "b", "7"),
        ("{a: '${b}', b: '${c}', c: 3}", "a", "3"),
        ("{a: '${b}', b: {x: 5}, c: '${a.x}'}", "c", "5"),
        ("{a: {x: 1, y: '${.x}'}, b: '${a.y}'}", "b", "1"),
        ("{t: 4, a: {y: '${..t}'}, b: '${a.y}'}", "b", "4"),
        (r"{a: 1, b: '\${a} ${a}'}", "b", "${a} 1"),
        (r"{a: 1, b: '\\${a}', c: '\\\${a}', d: 'x\y${a}'}", "b", r"\1"),
        (r"{a: 1, c: '\\\${a}'}", "c", r"'\${a}'"),
        (r"{a: 1, d: 'x\y${a}'}", "d", r"'x\y1'"),
        ("{b: '${now:%Y-%m-%d_%H-%M-%S}'}", "b", "2024-02-03_04-05-06"),
        ("{b: '${now:%H:%M}'}", "b", "'04:05'"),
        ("{hydra: {job: {name: j}}, b: '${hydra:job.name}'}", "b", "j"),
        ("{hydra: {job: {name: '${e}'}}, e: x, b: '${hydra:job.name}'}", "b", "x"),
        ("{b: '${oc.env:LLMPROF_NOT_SET,a b}'}", "b", "a b"),
        ("{b: '${oc.env:LLMPROF_NOT_SET, 1.0 }'}", "b", "'1.0'"),
        ("{b: '${oc.env:LLMPROF_NOT_SET,null}'}", "b", "null"),
        ("{a: 5, b: '${oc.env:LLMPROF_NOT_SET,${a}}'}", "b", "'5'"),
        ("{b: '${oc.select:nope, 7}', c: '${oc.select:nope}'}", "b", "7"),
        ("{m: '???', b: '${oc.select:m,x}'}", "b", "x"),
        ("{a: '5', b: '${oc.decode:${a}}'}", "b", "5"),
        ("{a: '[1, {b: ${c}}]', c: 2, b: '${oc.decode:\"[1, {k: 2}]\"}'}", "c", "2"),
        ("{b: '${oc.decode:\"[1, {k: x}]\"}'}", "b", "[1, {k: x}]"),
        ("{a: 5, b: '${oc.create:{x:1,y:[2,${a}]}}'}", "b", "{x: 1, y: [2, 5]}"),
        ("{a: {x: 1, y: 2}, b: '${oc.dict.keys:a}'}", "b", "[x, y]"),
        ("{a: {x: 1, y: '${a.x}'}, b: '${oc.dict.values:a}'}", "b", "[1, 1]"),
        ("{b: 'ä${c}ö', c: 'ü'}", "b", "äüö"),
        ("{b: $, c: '$ {x}'}", "c", "$ {x}"),
        ("{a: '???', b: 1}", "a", "???"),
    ];
    for (yaml, key, expected) in table {
        let value = resolved(yaml).unwrap_or_else(|error| panic!("{yaml}: {error}"));
        assert_eq!(value[key], serde_yaml_ng::from_str::<Value>(expected).unwrap(), "{yaml}");
    }
}

#[test]
fn errors_name_the_key_and_the_cause() {
    let table = [
        ("{a: '${b}', b: '${c}', c: 'x${a}'}", "interpolation cycle: a → b → c → a"),
        ("{a: '${a}'}", "interpolation cycle: a → a"),
        ("{a: {b: '${a}'}}", "interpolation cycle: a.b → a.b"),
        ("{a: {b: '${nope}'}}", "at a.b: there is no key \"nope\""),
        ("{model: {name: x}, b: '${model.nmae}'}", "did you mean model.name?"),
        ("{a: '${b'}", "missing } after ${"),
        ("{a: '${}'}", "missing key before '}'"),
        ("{a: '${a.}'}", "missing key before '}'"),
        ("{a: '${b c}'}", "unexpected ' ' in ${…}"),
        ("{a: '${.....b}'}", "refers to a parent of the root"),
        ("{a: '${noww:%Y}'}", "unknown resolver \"noww\"; did you mean now?"),
        ("{a: '${now:%}'}", "bad time format"),
        ("{a: '${now:a,b}'}", "now takes 1 argument(s), got 2"),
        ("{a: '???', b: '${a}'}", "a has no value yet (???)"),
        ("{hydra: {x: 1}, b: '${hydra:y}'}", "hydra has no key \"y\""),
        ("{hydra: {x: 1}, b: '${hydra.x}'}", "write ${hydra:…}"),
        ("{b: '${oc.env:LLMPROF_NOT_SET}'}", "LLMPROF_NOT_SET is not set"),
        ("{b: '${oc.decode:5}'}", "oc.decode expects text, got 5"),
        ("{b: '${oc.create:5}'}", "oc.create expects a list or a map"),
        ("{a: 1, b: '${oc.dict.keys:a}'}", "oc.dict.keys expects a map, but a is 1"),
        ("{b: \"${oc.env:X,'it''s'}\"}", "unexpected "),
        ("{b: '${oc.env:X,(a)}'}", "'(' must be quoted"),
    ];
    for (yaml, expected) in table {
        let message = resolved(yaml).unwrap_err().to_string();
        assert!(message.contains(expected), "{yaml}: {message}");
    }
}

#[test]
fn growth_and_depth_are_bounded() {
    let doubling = |leaf: &str, wrap: fn(usize) -> String| {
        let mut yaml: String = (0..40).map(|n| format!("a{n}: {}\n", wrap(n + 1))).collect();
        yaml.push_str(&format!("a40: {leaf}\n"));
        yaml
    };
    let chain: String = (0..2000).map(|n| format!("a{n}: ${{a{}}}\n", n + 1)).collect();
    let table = [
        doubling("''", |n| format!("'${{a{n}}}${{a{n}}}'")),
        doubling("x", |n| format!("'${{a{n}}}${{a{n}}}'")),
        doubling("x", |n| format!("['${{a{n}}}', '${{a{n}}}']")),
        chain,
        format!("a: '{}'", "${".repeat(20_000)),
        format!("a: '{}{}'", "${".repeat(20_000), "}".repeat(20_000)),
    ];
    for yaml in table {
        // An expansion that is not refused early would not end.
        assert!(matches!(resolved(&yaml), Err(ConfigError::Interpolation { .. })), "{}…", &yaml[..40]);
    }
}

#[test]
fn errors_name_the_origin_of_the_text() {
    let mut tree = crate::value_tree::ValueTree::default();
    let given = Origin::Override("a=${b}".into());
    tree.update("a", Value::from("${b}"), crate::value_tree::Keys::Open, &given).unwrap();
    let error = resolve(&tree.root, "", &ComposeContext::current("app"), &tree.origins).unwrap_err();
    assert!(error.to_string().ends_with("from the override \"a=${b}\""), "{error}");
}

proptest! {
    #[test]
    fn any_text_resolves_or_is_refused(text in any::<String>()) {
        let root = Value::Mapping([(Value::from("a"), Value::from(text.as_str()))].into_iter().collect());
        let outcome = resolve(&root, "", &ComposeContext::current("app"), &Origins::default());
        if !text.contains("${") {
            prop_assert_eq!(outcome.unwrap(), root);
        }
    }

    #[test]
    fn text_near_the_grammar(
        a in r"(\$\{|\}|\\|[abc.:,'\[\]0 ]|now:%Y|hydra:|oc\.(env|select|decode|create|dict\.keys):){0,16}",
        b in r"(\$\{|\}|[abc.]){0,8}",
    ) {
        let entries = [("a", Value::from(a)), ("b", Value::from(b)), ("c", Value::from(1))];
        let root = entries.into_iter().map(|(key, value)| (Value::from(key), value)).collect();
        let _ = resolve(&Value::Mapping(root), "", &ComposeContext::current("app"), &Origins::default());
    }
}
