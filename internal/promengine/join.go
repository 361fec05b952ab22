// SPDX-License-Identifier: Apache-2.0

package promengine

import (
	"fmt"

	"github.com/prometheus/prometheus/storage"
)

// Join returns a storage with the series of several. Samples of equal series are
// merged.
func Join(all ...storage.Queryable) storage.Queryable { return joined(all) }

type joined []storage.Queryable

// Querier is storage.Queryable's.
func (j joined) Querier(from, to int64) (storage.Querier, error) {
	out := make([]storage.Querier, 0, len(j))
	for _, q := range j {
		x, err := q.Querier(from, to)
		if err != nil {
			for _, opened := range out {
				_ = opened.Close()
			}
			return nil, fmt.Errorf("open a storage: %w", err)
		}
		out = append(out, x)
	}
	return storage.NewMergeQuerier(out, nil, storage.ChainedSeriesMerge), nil
}
