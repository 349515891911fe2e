# Completion of llmprof-tui for fish: llmprof-tui completion fish | source
function __llmprof_tui_candidates
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program $words[1]
    set -e words[1]
    $program __complete fish -- $words "$current" 2>/dev/null
end
complete -c llmprof-tui -f -a '(__llmprof_tui_candidates)'
