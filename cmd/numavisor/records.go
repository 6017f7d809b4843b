package main

import (
	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/host/record"
)

// recordsFlag names where the journal and the alarms are kept.
func recordsFlag(c *cobra.Command, folder *string) {
	c.Flags().StringVar(folder, "records", record.DefaultFolder, "folder of the journal and the alarms")
}
