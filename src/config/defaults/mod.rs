//! The defaults list: which files a configuration is made of, in which order, and where each one goes.

mod entry;
mod list;

pub use list::DefaultsItem;
pub(super) use list::defaults_list;
