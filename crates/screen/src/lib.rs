#![doc = include_str!("../README.md")]

pub mod export;
pub mod fleet;
pub mod frame;
pub mod keys;
pub mod layout;
mod pane;
pub mod panes;
pub mod run_tree;
pub mod svg;
pub mod theme;
pub mod ui;
pub mod view;
pub mod widgets;
