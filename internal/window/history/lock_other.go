// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package history

import (
	"errors"
	"os"
)

// lockFile reports that a volume needs a Unix system.
func lockFile(string) (*os.File, error) {
	return nil, errors.New("a volume of history needs the file locks of a Unix system")
}
