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
// most stale GPUs first. Of the groups, the smallest ones are first, and every kind is before the second
// pool of a kind.
func problemsOf(nodes []NodeSummary) (worst []NodeSummary, omitted int) {
	var groups []int // indexes of their first nodes
	var others []NodeSummary
	size, keys := map[group]int{}, map[int]group{}
	for i := range nodes {
		if len(nodes[i].Problems) == 0 {
			continue
		}
		g := nodes[i].alike()
		if size[g]++; size[g] > 1 {
			others = append(others, nodes[i])
			continue
		}
		keys[i] = g
		groups = append(groups, i)
	}
	slices.SortStableFunc(groups, func(a, b int) int { return cmp.Compare(size[keys[a]], size[keys[b]]) })
	pools := map[string]int{} // of a kind, so far
	turn := map[int]int{}
	for _, i := range groups {
		turn[i] = pools[keys[i].kind]
		pools[keys[i].kind]++
	}
	slices.SortStableFunc(groups, func(a, b int) int { return cmp.Compare(turn[a], turn[b]) })
	worst = make([]NodeSummary, 0, len(groups)+len(others))
	for _, i := range groups {
		n := nodes[i]
		n.Alike = size[keys[i]]
		worst = append(worst, n)
	}
	slices.SortStableFunc(others, func(a, b NodeSummary) int {
		return cmp.Or(cmp.Compare(b.Stale, a.Stale), cmp.Compare(len(b.Problems), len(a.Problems)), cmp.Compare(a.Name, b.Name))
	})
	return Fit(append(worst, others...), maxProblems, bytesProblems)
}
