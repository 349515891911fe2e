//! Parses the output of Slurm's commands. Invalid lines are skipped.

use super::state::{ExitCode, TaskState};
use llmprof_base::foreign::line;

/// Maximum characters of a list of nodes or the name of a cluster.
const MAX_NODES: usize = 100;

/// A job of an array in Slurm's queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedTask {
    pub array: u64,
    pub task: u32,
    pub state: TaskState,
    /// The reason in Slurm's terms.
    pub reason: String,
    pub nodes: Option<String>,
}

/// The end of a job of an array, or its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskEnd {
    pub array: u64,
    pub task: u32,
    pub state: TaskState,
    pub exit: Option<ExitCode>,
    pub nodes: Option<String>,
}

/// The format of `squeue` that [`parse_queue`] reads.
pub(super) const QUEUE_FORMAT: &str = "%F|%K|%T|%N|%r";
/// The fields of `sacct` that [`parse_accounting`] reads.
pub(super) const ACCOUNTING_FIELDS: &str = "JobID,State,ExitCode,NodeList";
/// The format of `squeue` that [`parse_commands`] reads.
pub(super) const COMMAND_FORMAT: &str = "%F|%o";

/// The lines of `squeue --array --noheader`. A line with several tasks, as without `--array`, gives one entry per task.
pub fn parse_queue(text: &str) -> Vec<QueuedTask> {
    let mut tasks = Vec::new();
    for row in text.lines() {
        let mut fields = row.splitn(5, '|');
        let mut field = || fields.next().map(str::trim);
        let (Some(array), Some(numbers), Some(state), Some(nodes), Some(reason)) =
            (field(), field(), field(), field(), field())
        else {
            continue;
        };
        let Ok(array) = array.parse() else { continue };
        for task in task_numbers(numbers) {
            let (state, reason) = (TaskState::parse(state), reason.to_owned());
            tasks.push(QueuedTask { array, task, state, reason, nodes: nodes_of(nodes) });
        }
    }
    tasks
}

/// The lines of `sacct --noheader --parsable2 --allocations --array`.
pub fn parse_accounting(text: &str) -> Vec<TaskEnd> {
    let end = |row: &str| {
        let mut fields = row.split('|').map(str::trim);
        let (id, state, exit, nodes) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let (array, task) = id.split_once('_')?;
        Some(TaskEnd {
            array: array.parse().ok()?,
            task: task.parse().ok()?,
            state: TaskState::parse(state),
            exit: exit.parse().ok(),
            nodes: nodes_of(nodes),
        })
    };
    text.lines().filter_map(end).collect()
}

/// The lines of `scontrol --oneliner show job`.
pub fn parse_control(text: &str) -> Vec<TaskEnd> {
    let mut ends = Vec::new();
    for row in text.lines() {
        let value = |name: &str| {
            row.split(' ')
                .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
                .filter(|value| *value != "(null)")
        };
        let (Some(Ok(array)), Some(numbers)) = (value("ArrayJobId").map(str::parse), value("ArrayTaskId"))
        else {
            continue;
        };
        for task in task_numbers(numbers) {
            ends.push(TaskEnd {
                array,
                task,
                state: TaskState::parse(value("JobState").unwrap_or_default()),
                exit: value("ExitCode").and_then(|text| text.parse().ok()),
                nodes: value("NodeList").and_then(nodes_of),
            });
        }
    }
    ends
}

/// `MaxArraySize` in the lines of `scontrol show config`: the maximum number of jobs in an array.
pub fn parse_max_array_size(text: &str) -> Option<usize> {
    let row = text.lines().find(|row| row.trim_start().starts_with("MaxArraySize"))?;
    row.split_once('=')?.1.trim().parse().ok()
}

/// The id in the line of `sbatch --parsable`, and the cluster if there are several: `123`, `123;one`.
pub fn parse_submitted(text: &str) -> Option<(u64, Option<String>)> {
    let row = text.lines().rev().find(|row| !row.trim().is_empty())?.trim();
    let (id, cluster) = row.split_once(';').map_or((row, None), |(id, cluster)| (id, Some(cluster)));
    let cluster = cluster.map(|name| line(name, MAX_NODES)).filter(|name| !name.is_empty());
    Some((id.parse().ok()?, cluster))
}

/// The arrays whose script is `script`, in the lines of squeue's command.
pub fn parse_commands(text: &str, script: &str) -> Option<u64> {
    text.lines().find_map(|row| {
        let (array, command) = row.split_once('|')?;
        (command.trim() == script).then(|| array.trim().parse().ok()).flatten()
    })
}

fn nodes_of(text: &str) -> Option<String> {
    let known = !matches!(text, "" | "(null)" | "None" | "None assigned" | "n/a" | "N/A");
    known.then(|| line(text, MAX_NODES))
}

/// More tasks than an array can have.
const MAX_TASKS: u32 = 4_000_000;

/// `3`, `2-4%2`, `1,5-7`, `0-8:4`.
fn task_numbers(text: &str) -> Vec<u32> {
    let text = text.split('%').next().unwrap_or_default().trim_matches(['[', ']']);
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (range, step) = part.split_once(':').unwrap_or((part, "1"));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if let (Ok(first), Ok(last), Ok(step)) =
            (first.parse::<u32>(), last.parse::<u32>(), step.parse::<usize>())
            && first <= last
            && last < MAX_TASKS
            && step > 0
        {
            let room = (MAX_TASKS as usize).saturating_sub(numbers.len());
            numbers.extend((first..=last).step_by(step).take(room));
        }
    }
    numbers
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // As Slurm 22.05 prints them.
    const QUEUE: &str = "\
1|2|PENDING||JobArrayTaskLimit
1|0|RUNNING|n1|None
1|1|FAILED|n2|NonZeroExitCode
slurm_load_jobs error: something
1|7-9%2|PENDING||ReqNodeNotAvail, UnavailableNodes:n[1-2]|x
";
    const CONTROL: &str = "\
JobId=1 ArrayJobId=1 ArrayTaskId=2-4%2 ArrayTaskThrottle=2 JobName=j.sh JobState=PENDING Reason=JobArrayTaskLimit ExitCode=0:0 NodeList= NumNodes=1
JobId=3 ArrayJobId=1 ArrayTaskId=1 JobName=a JobState=x JobState=FAILED ReqNodeList=(null) ExcNodeList=(null) NodeList=n2 BatchHost=n2 ExitCode=0:9
JobId=9 JobName=alone JobState=RUNNING ExitCode=0:0 NodeList=n2
";
    const ACCOUNTING: &str = "\
5_0|COMPLETED|0:0|n1
5_1|CANCELLED by 0|0:15|n2
5_[2-9]|PENDING|0:0|None assigned
5_10|OUT_OF_MEMORY|0:125|n[1-2]
garbage
";

    #[test]
    fn the_queue_is_read() {
        let tasks = parse_queue(QUEUE);
        let seen: Vec<(u32, &TaskState, Option<&str>)> =
            tasks.iter().map(|task| (task.task, &task.state, task.nodes.as_deref())).collect();
        assert_eq!(
            seen,
            [
                (2, &TaskState::Pending, None),
                (0, &TaskState::Running, Some("n1")),
                (1, &TaskState::Failed, Some("n2")),
                (7, &TaskState::Pending, None),
                (8, &TaskState::Pending, None),
                (9, &TaskState::Pending, None),
            ]
        );
        assert!(tasks[3].reason.ends_with("n[1-2]|x"), "{:?}", tasks[3]);
    }

    #[test]
    fn ends_are_read() {
        let ends = parse_control(CONTROL);
        assert_eq!(ends.iter().map(|end| end.task).collect::<Vec<_>>(), [2, 3, 4, 1]);
        assert_eq!(ends[3].exit, Some(ExitCode { code: 0, signal: 9 }));
        assert_eq!(ends[3].nodes.as_deref(), Some("n2"));
        assert_eq!(ends[0].nodes, None);
        let ends = parse_accounting(ACCOUNTING);
        let seen: Vec<(u32, &TaskState)> = ends.iter().map(|end| (end.task, &end.state)).collect();
        assert_eq!(
            seen,
            [(0, &TaskState::Completed), (1, &TaskState::Cancelled), (10, &TaskState::OutOfMemory)]
        );
    }

    #[test]
    fn small_answers_are_read() {
        assert_eq!(parse_submitted("12\n"), Some((12, None)));
        assert_eq!(parse_submitted("sbatch: some remark\n12;one\n"), Some((12, Some("one".into()))));
        assert_eq!(parse_submitted(""), None);
        assert_eq!(parse_max_array_size("MaxArrayTasks = 3\nMaxArraySize            = 1001\n"), Some(1001));
        assert_eq!(parse_max_array_size("MaxArraySize = (null)"), None);
        assert_eq!(parse_commands("4|/a/b.sh\n5|/a/c.sh\n", "/a/c.sh"), Some(5));
        assert_eq!(parse_commands("4|/a/b.sh\n", "/a"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "(?s).{0,300}") {
            parse_queue(&text);
            parse_control(&text);
            parse_accounting(&text);
            parse_max_array_size(&text);
            parse_submitted(&text);
            parse_commands(&text, &text);
        }

        #[test]
        fn a_row_reads_back(
            array in 1u64..1 << 40,
            task in 0u32..4_000_000,
            state in prop::sample::select(vec!["PENDING", "RUNNING", "COMPLETED", "TIMEOUT"]),
            node in "[a-z]{1,8}[0-9]{0,3}",
            reason in "[A-Za-z(), |]{0,40}",
        ) {
            let read = parse_queue(&format!("{array}|{task}|{state}|{node}|{reason}\n"));
            prop_assert_eq!(read.len(), 1);
            prop_assert_eq!((read[0].array, read[0].task), (array, task));
            prop_assert_eq!(&read[0].state, &TaskState::parse(state));
            prop_assert_eq!(read[0].reason.as_str(), reason.trim());
            prop_assert_eq!(&read[0].nodes, &nodes_of(&node));
            let end = parse_accounting(&format!("{array}_{task}|{state}|3:0|{node}\n"));
            prop_assert_eq!((end[0].array, end[0].task, end[0].exit.map(|exit| exit.code)), (array, task, Some(3)));
        }

        #[test]
        fn ranges_are_bounded(first in any::<u32>(), last in any::<u32>(), step in 0usize..5) {
            let numbers = task_numbers(&format!("[{first}-{last}:{step}%7]"));
            prop_assert!(numbers.len() <= MAX_TASKS as usize);
            prop_assert!(numbers.iter().all(|number| (first..=last).contains(number)));
        }
    }
}
