#compdef llmprof-tui
# Completion of llmprof-tui for zsh: source <(llmprof-tui completion zsh), after compinit
_llmprof_tui() {
    local program=${~words[1]} candidate note
    local -a whole whole_notes open open_notes
    while IFS=$'\t' read -r candidate note; do
        # More follows these, so no space does.
        if [[ $candidate == *[=./] ]]; then
            open+=("$candidate") open_notes+=("$candidate${note:+  -- $note}")
        else
            whole+=("$candidate") whole_notes+=("$candidate${note:+  -- $note}")
        fi
    done < <("$program" __complete zsh -- "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)
    (( $#open )) && compadd -l -d open_notes -S '' -a open
    (( $#whole )) && compadd -l -d whole_notes -a whole
    return 0
}
# Read from a file of $fpath this is the function itself; sourced, it is named to the shell.
if [[ $funcstack[1] == _llmprof_tui || $funcstack[1] == _llmprof-tui ]]; then
    _llmprof_tui "$@"
else
    compdef _llmprof_tui llmprof-tui
fi
