//! Enums that recordings keep as text.

/// Declares an enum that is displayed and recorded as one text per variant. Earlier texts of a variant follow after
/// `or`; an unknown text is kept as `Other`.
macro_rules! text_enum {
    ($(#[$meta:meta])* $name:ident {
        $($(#[$doc:meta])* $variant:ident = $text:literal $(or $earlier:literal)*,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $text $(, alias = $earlier)*)] $variant,)*
            /// The text of another version.
            #[serde(untagged)]
            Other(String),
        }

        impl From<&str> for $name {
            fn from(text: &str) -> $name {
                match text {
                    $($text $(| $earlier)* => $name::$variant,)*
                    _ => $name::Other(text.to_owned()),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(match self {
                    $($name::$variant => $text,)*
                    $name::Other(text) => text,
                })
            }
        }
    };
}

pub(super) use text_enum;
