//! The models of `conf/model`, for tests.

use std::path::Path;

use hydra_config::{ComposeContext, ConfTree, to_json};
use serde::Deserialize;
use serde_json::Value;

use crate::PreprocessConfig;

#[derive(Deserialize)]
pub(crate) struct Model {
    pub arch: Value,
    #[serde(default)]
    pub preprocess: Option<PreprocessConfig>,
}

fn tree() -> ConfTree {
    ConfTree::from_files([("", ""); 0])
        .with_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conf"))
        .unwrap()
}

pub(crate) fn names() -> Vec<String> {
    tree().options("model")
}

pub(crate) fn model(name: &str) -> Model {
    let context = ComposeContext::current("llm-cost");
    let composed =
        hydra_config::compose::<hydra_config::Value>(&tree(), &[format!("model={name}")], &context).unwrap();
    Model::deserialize(to_json(&composed.config["model"])).unwrap()
}
