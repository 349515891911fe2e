//! The owners of processes.

use std::{fs, path::Path};

use llmprof_base::read;

/// The users of this machine.
#[derive(Debug, Default)]
pub(super) struct Users {
    /// User id and name.
    named: Vec<(u32, String)>,
}

/// Maximum bytes of a list of users.
const MAX_LIST: u64 = 4_000_000;

impl Users {
    pub(super) fn of_this_machine() -> Users {
        Users::in_list(&read::text(Path::new("/etc/passwd"), MAX_LIST).unwrap_or_default())
    }

    /// `name:password:id:…` on each line.
    fn in_list(list: &str) -> Users {
        let entry = |line: &str| {
            let mut fields = line.split(':');
            let (name, number) = (fields.next()?, fields.nth(1)?.parse().ok()?);
            (!name.is_empty()).then(|| (number, name.to_owned()))
        };
        Users { named: list.lines().filter_map(entry).collect() }
    }

    /// The name, or the id of a user without one.
    fn name(&self, number: u32) -> String {
        let named = self.named.iter().find(|(known, _)| *known == number);
        named.map_or_else(|| number.to_string(), |(_, name)| name.clone())
    }

    /// `None` for a process outside of this container.
    #[cfg(unix)]
    pub(super) fn of_process(&self, pid: u32) -> Option<String> {
        use std::os::unix::fs::MetadataExt;
        let process = fs::metadata(format!("/proc/{pid}")).ok()?;
        Some(self.name(process.uid()))
    }

    #[cfg(not(unix))]
    pub(super) fn of_process(&self, _pid: u32) -> Option<String> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_a_name_is_a_number() {
        let users =
            Users::in_list("root:x:0:0::/root:/bin/sh\n# note\n+\n:x:7:7::\nada:x:1000:1000::\nbad:x:y:\n");
        assert_eq!([0, 1000, 7].map(|number| users.name(number)), ["root", "ada", "7"]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn processes_have_owners() {
        use std::os::unix::fs::MetadataExt;
        let mine = fs::metadata("/proc/self").unwrap().uid();
        let users = Users { named: vec![(mine, "me".to_owned())] };
        assert_eq!(users.of_process(std::process::id()).as_deref(), Some("me"));
        assert_eq!(users.of_process(u32::MAX), None);
    }
}
