// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"slices"
)

// Account is the size of one target.
type Account struct {
	Group *Group
	Bytes int64
}

// Shares are the limits of targets and groups, in bytes.
type Shares struct {
	target  int64            // for each target
	level   int64            // for each group
	members map[*Group]int64 // for each target of a group that exceeds level
}

// Of returns the limit of a target.
func (s *Shares) Of(a *Account) int64 {
	if l, ok := s.members[a.Group]; ok {
		return min(s.target, l)
	}
	return s.target
}

// IsDue reports whether growth since the last Divide requires another one.
func (l *Ledger) IsDue() bool { return l.due.Load() }

// Begin begins a division. It reports whether one can free memory: if the last one
// was a moment ago, another would free nothing.
func (l *Ledger) Begin() bool {
	l.due.Store(false)
	return l.moved.Load() >= l.limit/256 || l.targetShare.Load() == noLevel
}

// Divide computes the shares of all targets. No target has to shrink below honest while
// another one is larger. Take applies the shares from now on; the caller shrinks the
// targets that exceed theirs, and calls Done.
func (l *Ledger) Divide(accounts []Account, honest int64) Shares {
	s := share(accounts, l.soft-l.limit/16, honest)
	l.targetShare.Store(s.target)
	l.groupShare.Store(s.level)
	return s
}

// Done ends a division.
func (l *Ledger) Done() { l.moved.Store(0) }

// TargetShare returns the limit of one target. ok is false if it has none.
func (l *Ledger) TargetShare() (bytes int64, ok bool) {
	s := l.targetShare.Load()
	return s, s != noLevel
}

// share divides capacity between targets. The first limit is for each target: the
// largest targets shrink to the same size, but not below honest. If that does not
// suffice, the second limit is for each group: the largest groups shrink to the same
// size, and in a group its largest targets.
func share(accounts []Account, capacity, honest int64) Shares {
	all := make([]int64, 0, len(accounts))
	groups := map[*Group][]int64{}
	for _, a := range accounts {
		all = append(all, a.Bytes)
		groups[a.Group] = append(groups[a.Group], a.Bytes)
	}
	s := Shares{target: max(level(all, capacity), honest), members: map[*Group]int64{}}
	sums := make([]int64, 0, len(groups))
	for _, members := range groups {
		sums = append(sums, sumUpTo(members, s.target))
	}
	s.level = level(sums, capacity)
	if s.level == noLevel {
		return s
	}
	for key, members := range groups {
		if sumUpTo(members, s.target) > s.level {
			s.members[key] = level(members, s.level)
		}
	}
	return s
}

func sumUpTo(sizes []int64, most int64) (sum int64) {
	for _, n := range sizes {
		sum += min(n, most)
	}
	return sum
}

// level returns the largest size limit with which all fit into capacity. Smaller
// items keep their size. It returns noLevel if no limit is needed.
func level(sizes []int64, capacity int64) int64 {
	slices.SortFunc(sizes, cmp.Compare)
	left := max(capacity, 0)
	for i, n := range sizes {
		if each := left / int64(len(sizes)-i); n > each {
			return each
		}
		left -= n
	}
	return noLevel
}
