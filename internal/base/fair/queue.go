// SPDX-License-Identifier: Apache-2.0

package fair

// Queue is a queue in which payers take turns, so that one with many items delays
// another one's by one item. It is not safe for concurrent use.
type Queue[T any] struct {
	items map[Payer][]T
	order []Payer // of items, next one first
	n     int
}

// Put appends an item to those of a payer.
func (q *Queue[T]) Put(of Payer, item T) {
	if q.items == nil {
		q.items = map[Payer][]T{}
	}
	own := q.items[of]
	if len(own) == 0 {
		q.order = append(q.order, of)
	}
	q.items[of] = append(own, item)
	q.n++
}

// Take removes the first item of the payer whose turn it is. It reports false if there is none.
func (q *Queue[T]) Take() (item T, ok bool) {
	if len(q.order) == 0 {
		return item, false
	}
	of := q.order[0]
	q.order = q.order[1:]
	own := q.items[of]
	item, own[0] = own[0], item // for the garbage collector
	if q.n--; len(own) > 1 {
		q.items[of] = own[1:]
		q.order = append(q.order, of)
	} else {
		delete(q.items, of)
	}
	return item, true
}

// Len returns the number of items.
func (q *Queue[T]) Len() int { return q.n }

// LenOf returns the number of items of a payer.
func (q *Queue[T]) LenOf(of Payer) int { return len(q.items[of]) }
