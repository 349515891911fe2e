# Completion of llmprof-tui for bash: eval "$(llmprof-tui completion bash)"
_llmprof_tui() {
    local candidate program=${1/#\~/$HOME}
    COMPREPLY=()
    while IFS= read -r candidate; do
        COMPREPLY+=("$candidate")
    done < <("$program" __complete bash -- "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null)
}
complete -o nospace -F _llmprof_tui llmprof-tui
