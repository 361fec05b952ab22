// SPDX-License-Identifier: Apache-2.0

// Command kubectl is Kubernetes' own kubectl, built from its module: the tests run the pages' commands with it.
package main

import (
	"os"

	"k8s.io/kubectl/pkg/cmd"
)

func main() {
	if err := cmd.NewDefaultKubectlCommand().Execute(); err != nil {
		os.Exit(1)
	}
}
