// SPDX-License-Identifier: Apache-2.0

package ring

import "slices"

// Stamps are times in ns since 1970, ascending. The zero Stamps are none.
type Stamps struct{ list []int64 }

// Bytes returns their memory.
func (s *Stamps) Bytes() int64 { return 8 * int64(cap(s.list)) }

// Add adds a time. It drops those that are not before it, because the clock was set back,
// one before since, and the oldest beyond so many. Room for so many is allocated at once.
func (s *Stamps) Add(stamp, since int64, most int) {
	if s.list == nil {
		s.list = make([]int64, 0, most)
	}
	for len(s.list) > 0 && s.list[len(s.list)-1] >= stamp {
		s.list = s.list[:len(s.list)-1]
	}
	if len(s.list) == most || len(s.list) > 0 && s.list[0] < since {
		s.list = slices.Delete(s.list, 0, 1)
	}
	s.list = append(s.list, stamp)
}

// From returns the times from one on, without a copy.
func (s *Stamps) From(from int64) []int64 {
	at, _ := slices.BinarySearch(s.list, from)
	return s.list[at:]
}

// Clear forgets all times, and keeps the memory.
func (s *Stamps) Clear() { s.list = s.list[:0] }
