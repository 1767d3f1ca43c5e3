package worker_test

const childConfig = "HEADGATE_TEST_WORKER"

func childServer() bool { return false }
