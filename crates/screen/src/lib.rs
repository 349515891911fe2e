#![doc = include_str!("../README.md")]

mod app;
mod bounded;
pub mod export;
pub mod fleet;
pub mod frame;
mod input;
pub mod keys;
pub mod layout;
mod pane;
pub mod panes;
pub mod run_tree;
pub mod svg;
pub mod terminal;
pub mod theme;
pub mod ui;
pub mod view;
pub mod widgets;

pub use app::{App, Live, Replan, Stopped, Workload};
pub use input::Input;
