// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"slices"
	"strings"
)

// group is what nodes with the same problems have in common.
type group struct{ pool, kind string }

// alike returns the node's group.
func (n *NodeSummary) alike() group {
	kinds := make([]string, len(n.Problems))
	for i, p := range n.Problems {
		kinds[i] = kindOf(p, n.Name)
	}
	return group{n.Pool, strings.Join(kinds, "; ")}
}

// IsAlike reports whether two nodes with problems are of one pool and differ only in the names, addresses
// and numbers in them.
func (n *NodeSummary) IsAlike(o *NodeSummary) bool {
	return n.Pool == o.Pool && len(n.Problems) == len(o.Problems) && len(n.Problems) > 0 && n.alike() == o.alike()
}

// maxKind is the length up to which problems that were cut are compared: what is cut depends on the
// length of names.
const maxKind = 100

// kindOf returns a problem without what tells one node from another: the node's name, addresses, UUIDs,
// times, names of pods and counts. The code of an XID error stays.
func kindOf(problem, node string) string {
	var b strings.Builder
	b.Grow(len(problem) + 1)
	before := ""
	for word := range strings.FieldsSeq(problem) {
		if node != "" && strings.Contains(word, node) || before != "XID" && isOwn(word) {
			b.WriteByte('#')
		} else {
			b.WriteString(word)
		}
		b.WriteByte(' ')
		before = word
	}
	if kind := b.String(); !strings.HasSuffix(problem, "…") || len(kind) <= maxKind {
		return kind
	}
	return b.String()[:maxKind]
}

// isOwn reports whether a word is a number, or has a digit and two of the separators of addresses, UUIDs,
// times and names.
func isOwn(word string) bool {
	digits, separators := 0, 0
	for i := range len(word) {
		if c := word[i]; '0' <= c && c <= '9' {
			digits++
		}
	}
	if digits == 0 {
		return false
	}
	word = strings.Trim(word, `.,:;()[]"`)
	for i := range len(word) {
		if c := word[i]; c == '.' || c == ':' || c == '-' {
			separators++
		}
	}
	return digits == len(word) || separators >= 2 || strings.HasPrefix(word, "GPU-")
}

// problemsOf returns the nodes with problems: first one of each group, then the others, those with the
// most stale GPUs first. Groups with stale or unhealthy GPUs are before others, and those with the most GPUs and
// nodes before smaller ones. A kind's first pool is before the second pool of any kind, so that a fault of many
// pools does not hide another one.
func problemsOf(nodes []NodeSummary) (worst []NodeSummary, omitted int) {
	var others []NodeSummary
	at := map[group]int{} // index in worst
	for i := range nodes {
		n := nodes[i]
		if len(n.Problems) == 0 {
			continue
		}
		g := n.alike()
		first, known := at[g]
		if !known {
			first, at[g] = len(worst), len(worst)
			worst = append(worst, n)
		} else {
			others = append(others, n)
		}
		of := &worst[first]
		of.Alike++
		of.AlikeGPUs += n.ProblemGPUs
		if since := n.ProblemSince; !since.IsZero() && (of.AlikeSince.IsZero() || since.Before(of.AlikeSince)) {
			of.AlikeSince = since
		}
	}
	slices.SortStableFunc(worst, func(a, b NodeSummary) int {
		return cmp.Or(cmp.Compare(severity(&b), severity(&a)), cmp.Compare(b.AlikeGPUs, a.AlikeGPUs), cmp.Compare(b.Alike, a.Alike))
	})
	pools := map[string]int{} // of a kind, so far
	turns := make(map[string]int, len(worst))
	for i := range worst {
		kind := worst[i].alike().kind
		turns[worst[i].Name] = pools[kind]
		pools[kind]++
	}
	slices.SortStableFunc(worst, func(a, b NodeSummary) int { return cmp.Compare(turns[a.Name], turns[b.Name]) })
	slices.SortStableFunc(others, func(a, b NodeSummary) int {
		return cmp.Or(cmp.Compare(b.Stale, a.Stale), cmp.Compare(len(b.Problems), len(a.Problems)), cmp.Compare(a.Name, b.Name))
	})
	return Fit(append(worst, others...), maxProblems, bytesProblems)
}

// severity is higher for a node with stale or unhealthy GPUs.
func severity(n *NodeSummary) int {
	if n.severe {
		return 1
	}
	return 0
}
